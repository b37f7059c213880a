"""Keys that other training tools have, answered in sftune's terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Answer:
    """What sftune says to a key of another tool: how the thing is called here, and what to write."""

    what: str
    fix: str


_ANSWERS: tuple[tuple[str, Answer], ...] = (
    (
        "lora adapter adapters peft qlora lora_r lora_alpha lora_dropout lora_rank lora_target "
        "lora_target_modules lora_target_linear lora_modules_to_save target_modules load_in_4bit load_in_8bit "
        "quantization quantization_config bnb_config dora galore use_peft peft_config finetuning_type "
        "quantization_bit relora_steps freeze",
        Answer("sftune trains all weights; it has no LoRA, adapters or quantised bases", "Remove it."),
    ),
    (
        "deepspeed deepspeed_config zero_stage zero3 fsdp fsdp_config fsdp_version megatron ddp accelerate "
        "tensor_parallel tensor_parallel_size pipeline_parallel context_parallel",
        Answer(
            "sftune always shards with FSDP2; it has no other engine",
            "Remove it; what can be chosen is in `sharding`.",
        ),
    ),
    (
        "packing sample_packing pack packed multipack neat_packing padding_free eval_sample_packing "
        "pad_to_sequence_len pad_to_multiple_of eval_packing",
        Answer("packing is a mode of batching here", "Write `batching: {mode: packing}`, or `padding`."),
    ),
    (
        "gradient_accumulation_steps per_device_train_batch_size per_device_eval_batch_size batch_size "
        "micro_batch_size train_batch_size eval_batch_size global_batch_size gradient_accumulation "
        "auto_find_batch_size mini_batch_size grad_accum local_batch_size",
        Answer(
            "a micro-batch is measured in token slots here, not in rows",
            "Write `batching: {tokens: 8192}` and the global batch as `train: {tokens_per_step: 131072}`.",
        ),
    ),
    (
        "max_seq_length max_seq_len sequence_len sequence_length seq_len seq_length cutoff_len model_max_length "
        "block_size context_length",
        Answer(
            "the longest row is `data.max_length`",
            "Write `data: {max_length: 8192}`; packs have `batching.tokens` slots.",
        ),
    ),
    (
        "base_model model_name model_name_or_path model_id pretrained_model_name_or_path model_path "
        "base_model_config model_type name_or_path",
        Answer("the model is `model.path`", "Write `model: {path: Qwen/Qwen3.8-27B}`."),
    ),
    (
        "tokenizer_name tokenizer_path tokenizer_type tokenizer_config",
        Answer("the tokenizer is `model.tokenizer`", "Leave it out: the default is the model's own."),
    ),
    (
        "datasets dataset dataset_name dataset_path train_file train_data data_path test_datasets eval_dataset "
        "val_data validation_file val_set_size train_dataset dataset_dir",
        Answer("the data are `data.train` and `data.eval`", "Write `data: {train: chat.jsonl}`."),
    ),
    (
        "lr max_lr peak_lr base_lr",
        Answer("the learning rate is `optimizer.learning_rate`", "Write `optimizer: {learning_rate: 1e-5}`."),
    ),
    (
        "lr_scheduler lr_scheduler_type learning_rate_scheduler scheduler lr_scheduler_kwargs",
        Answer("the schedule is `schedule.name`", "Write `schedule: {name: cosine}`: constant, linear, cosine or wsd."),
    ),
    (
        "warmup_steps warmup_ratio num_warmup_steps lr_warmup_steps",
        Answer("warm-up is `schedule.warmup`", "Write `schedule: {warmup: 0.03}`: steps, or a fraction below 1."),
    ),
    (
        "min_lr min_lr_ratio cosine_min_lr_ratio",
        Answer(
            "the end of the schedule is `schedule.min_ratio`",
            "Write `schedule: {min_ratio: 0.1}`: a share of the peak.",
        ),
    ),
    (
        "bf16 fp16 tf32 fp32 float16 bfloat16 torch_dtype precision mixed_precision amp",
        Answer("the dtype of compute is `model.dtype`", "Write `model: {dtype: bfloat16}`, or `float32`."),
    ),
    (
        "gradient_checkpointing gradient_checkpointing_kwargs recompute enable_activation_checkpointing "
        "use_gradient_checkpointing",
        Answer(
            "activation checkpointing is `sharding.activation_checkpointing`",
            "Write `sharding: {activation_checkpointing: {mode: full}}`, or `auto` or `none`.",
        ),
    ),
    (
        "flash_attention flash_attn use_flash_attention use_flash_attention_2 attn_implementation sdp_attention "
        "xformers_attention flex_attention eager_attention",
        Answer("attention kernels are `kernels.attention`", "Write `kernels: {attention: auto}`."),
    ),
    (
        "liger use_liger use_liger_kernel liger_kernel enable_liger_kernel plugins unsloth",
        Answer("kernels are chosen slot by slot in `kernels`", "Remove it: `auto` takes the best that is sound."),
    ),
    (
        "eval_steps eval_strategy evaluation_strategy evals_per_epoch eval_every do_eval",
        Answer("evaluation is every `evaluate.every_steps` steps", "Write `evaluate: {every_steps: 100}`."),
    ),
    (
        "save_steps save_strategy saves_per_epoch save_every checkpoint_every",
        Answer("checkpoints are every `checkpoint.every_steps` steps", "Write `checkpoint: {every_steps: 200}`."),
    ),
    (
        "save_total_limit keep_last max_checkpoints",
        Answer("the number of checkpoints kept is `checkpoint.keep`", "Write `checkpoint: {keep: 2}`."),
    ),
    (
        "wandb report_to wandb_project wandb_entity wandb_run_id run_name mlflow tensorboard use_wandb logger "
        "mlflow_tracking_uri use_tensorboard trackio wandb_name",
        Answer("trackers are listed in `telemetry.trackers`", "Write `telemetry: {trackers: [wandb]}`."),
    ),
    (
        "logging_steps log_interval log_every logging_strategy log_every_n_steps",
        Answer("log lines are every `telemetry.log_every_steps` steps", "Write `telemetry: {log_every_steps: 1}`."),
    ),
    (
        "num_train_epochs num_epochs max_epochs n_epochs",
        Answer("the number of epochs is `train.epochs`", "Write `train: {epochs: 1}`."),
    ),
    (
        "gradient_clipping grad_clip clip_grad_norm max_norm gradient_clip_val",
        Answer("clipping is `train.max_grad_norm`", "Write `train: {max_grad_norm: 1.0}`."),
    ),
    (
        "train_on_inputs assistant_only_loss completion_only_loss train_on_responses_only roles_to_train",
        Answer(
            "which tokens the loss counts is `data.supervise`",
            "Write `data: {supervise: assistant}`: last_assistant, all.",
        ),
    ),
    (
        "chat_template_jinja template chat_template_path prompt_template conversation_template",
        Answer("the chat template is the file `model.chat_template`", "Write `model: {chat_template: chat.jinja}`."),
    ),
    (
        "torch_compile use_compile torch_compile_mode",
        Answer("torch.compile is `kernels.compile`", "Write `kernels: {compile: true}`."),
    ),
    (
        "resume resume_from_checkpoint auto_resume_from_checkpoints",
        Answer("resuming is asked for on the command line", "Remove it."),
    ),
    (
        "rl dpo orpo kto grpo reward_model stage loss_type",
        Answer("sftune does supervised fine-tuning only", "Remove it."),
    ),
    (
        "adam_beta1 adam_beta2 beta1 beta2",
        Answer("both are `optimizer.betas`", "Write `optimizer: {betas: [0.9, 0.95]}`."),
    ),
    (
        "adam_epsilon epsilon",
        Answer("it is `optimizer.eps`", "Write `optimizer: {eps: 1e-8}`."),
    ),
    (
        "optim optimizer_type optim_args",
        Answer("the optimizer is `optimizer.name`", "Write `optimizer: {name: adamw}`."),
    ),
    (
        "dataloader_num_workers dataset_num_proc dataset_processes preprocessing_num_workers",
        Answer("sftune tokenises once and caches; there are no workers to count", "Remove it."),
    ),
    (
        "dataset_prepared_path cache_path",
        Answer("tokenised data is kept in `data.cache_dir`", "Write `data: {cache_dir: ~/.cache/sftune}`."),
    ),
    (
        "group_by_length length_column_name",
        Answer("rows are grouped by `batching.order`", "Write `batching: {mode: padding, order: length_grouped}`."),
    ),
    (
        "push_to_hub hub_model_id hub_strategy hub_token",
        Answer(
            "sftune writes to `output_dir` and uploads nothing", "Remove it; `hf upload` takes the folder `export`."
        ),
    ),
    (
        "token hf_token use_auth_token auth_token api_key wandb_api_key",
        Answer(
            "recipes hold no secrets: they are written into run folders",
            "Remove it; put the token in HF_TOKEN, or run `hf auth login`.",
        ),
    ),
    (
        "num_gpus nproc_per_node num_processes n_gpus world_size devices",
        Answer("the number of processes is `launch.gpus`", "Write `launch: {gpus: 8}`, or `auto`."),
    ),
    (
        "nnodes num_nodes",
        Answer("the number of machines is `launch.nodes`", "Write `launch: {nodes: 2}`."),
    ),
    (
        "output save_dir out_dir output_path checkpoint_dir",
        Answer("a run is written to `output_dir`", "Write `output_dir: runs/name` at the top level."),
    ),
    (
        "random_seed data_seed manual_seed",
        Answer("the seed is `train.seed`", "Write `train: {seed: 0}`."),
    ),
    (
        "load_best_model_at_end metric_for_best_model greater_is_better",
        Answer("the best checkpoint is kept with `evaluate.keep_best`", "Write `evaluate: {keep_best: true}`."),
    ),
    (
        "early_stopping early_stopping_patience",
        Answer("early stopping is `evaluate.patience`", "Write `evaluate: {patience: 3}`."),
    ),
    (
        "neftune_noise_alpha",
        Answer("sftune has no NEFTune noise", "Remove it."),
    ),
    (
        "label_smoothing label_smoothing_factor",
        Answer("sftune's loss is plain cross-entropy", "Remove it."),
    ),
)

FOREIGN_KEYS: Mapping[str, Answer] = MappingProxyType(
    {name: answer for names, answer in _ANSWERS for name in names.split()}
)
"""Key of another tool -> the answer to it."""
