"""Typed reader of a folder's `config.json` that refuses fields which nothing has read."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from jaxzoo.config.checked import nearest, nearest_path
from jaxzoo.config.json_files import read_json

T = TypeVar("T")

WITHOUT_EFFECT = (
    r"_name_or_path|architectures|auto_map|model_type|tokenizer_class|transformers_version|prefix",  # names
    r"is_llama_config|transformers\.js_config|model_name|unsloth_\w+",  # SmolLM2, Unsloth
    r"(torch_)?dtype|use_bfloat16|torchscript|_?attn_implementation(_autoset)?|chunk_size_feed_forward",
    r"fused?_\w+|use_flash_attn|reorder_and_upcast_attn|residual_in_fp32|pad_vocab_size_multiple",  # speed
    r"(attention|hidden|classifier)_dropout|(attn|embd|resid)_pdrop|initializer_range",  # training
    r"pretraining_tp|router_aux_loss_coef",
    r"finetuning_task|problem_type|task_specific_params|id2label|label2id|summary_\w+",  # other tasks
    r"is_decoder|tie_encoder_decoder|cross_attention_hidden_size",
    r"\w+_token_id|bad_words_ids|(begin_)?suppress_tokens|(min|max)_length|\w+_penalty",  # generation
    r"do_sample|temperature|top_[kp]|typical_p|early_stopping|num_(beams|beam_groups|return_sequences)",
    r"(encoder_)?no_repeat_ngram_size|remove_invalid_values|use_cache|return_dict(_in_generate)?",
    r"output_(attentions|hidden_states|router_logits|scores)",
)
"""Patterns of fields that do not affect the function of a trained model."""


class Fields:
    """Fields of a JSON object, read by name and type. `where` is its name in errors; `ignored` fields, also of nested
    objects, may stay unread."""

    def __init__(self, content: Mapping[str, Any], where: str, ignored: Collection[str] = ()):
        self.content: Mapping[str, Any] = content
        self.where: str = where
        self._ignored = frozenset(ignored)
        self._read: set[str] = set()

    def integer(self, *names: str, default: int | None = None, low: int = 1) -> int:
        """Returns an integer of at least `low`, under the first existing name. Raises `ValueError` if it is something
        else, or missing without a default."""
        value = self._get(names, default)
        if type(value) is not int or value < low:
            self.refuse(names[0], f"must be an integer of at least {low}")
        return value

    def number(self, *names: str, default: float | None = None, low: float = 0.0) -> float:
        """Returns a finite number of at least `low`, as `integer`."""
        value = self._get(names, default)
        if type(value) not in (int, float) or not low <= value < 1e30:
            self.refuse(names[0], f"must be a number of at least {low:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get((name,), default)
        if type(value) is not bool:
            self.refuse(name, "must be true or false")
        return value

    def choice(self, *names: str, of: Mapping[str, T], default: str | None = None) -> T:
        """Returns the meaning of a word."""
        value = self._get(names, default)
        if not isinstance(value, str) or value not in of:
            self.refuse(names[0], f"must be one of {', '.join(of)}, which this library computes")
        return of[value]

    def optional(self, name: str, default: Any = None) -> Any:
        """Returns any value; the default if the field is absent."""
        self._read.add(name)
        return self.content.get(name, default)

    def ignore(self, *names: str) -> None:
        """Allows fields to stay unread."""
        self._read.update(names)

    def optional_integer(self, name: str, default: int | None = None) -> int | None:
        """Returns a positive integer or None; the default if the field is absent."""
        if self.optional(name, default) is None:
            return None
        return self.integer(name, default=default)

    def section(self, name: str) -> "Fields | None":
        """Returns a nested object, or None."""
        value = self.optional(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, "must be an object")
        return Fields(value, f"{self.where}: {name}", self._ignored)

    def words(self, name: str, n: int, of: Mapping[str, T]) -> tuple[T, ...] | None:
        """Returns the meanings of a list of `n` words, or None."""
        value = self.optional(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != n or not all(isinstance(w, str) and w in of for w in value):
            self.refuse(name, f"must be a list of {n} words out of {', '.join(of)}")
        return tuple(of[word] for word in value)

    def require(self, name: str, *allowed: Any) -> None:
        """Refuses other values than these; an absent field has the first."""
        value = self._get((name,), allowed[0]) if allowed[0] is not None else self.optional(name)
        if not any(value == each and type(value) is type(each) for each in allowed):
            shown = " or ".join(_json(each) for each in allowed)
            self.refuse(name, f"must be {shown}; this library computes nothing else")

    def refuse(self, name: str, rule: str) -> NoReturn:
        """Raises `ValueError` with field, value and rule."""
        value = self.content.get(name)
        shown = "is missing and" if name not in self.content else f"= {_json(value)}"
        raise ValueError(f"{self.where}: {name} {shown} {rule}")

    def check_all_read(self) -> None:
        """Raises `ValueError` for the first unread field, unless it is off (null, false, 0 or empty) or without
        effect."""
        for name, value in self.content.items():
            if not value or name in self._read | self._ignored or re.fullmatch("|".join(WITHOUT_EFFECT), name):
                continue
            hint = nearest(name, self._read)
            raise ValueError(
                f"{self.where}: {name} = {_json(value)} is a field that this library does not know{hint}; if it says "
                f"nothing about the function of the model, ignore it: --ignore-field {name}"
            )

    def _get(self, names: tuple[str, ...], default: Any) -> Any:
        self._read.update(names)
        found = next((self.content[name] for name in names if self.content.get(name) is not None), default)
        if found is None:
            self.refuse(names[0], "must be given")
        return found


def read_config(directory: Path, ignored: Collection[str] = ()) -> Fields:
    """Reads a folder's config.json. Raises `ValueError` if it is absent, too large, or no JSON object; `OSError` if it
    cannot be read."""
    file = directory / "config.json"
    if not directory.is_dir():
        takes = "name a folder with config.json and the model's tensors"
        raise ValueError(f"{directory} is no directory; {takes}{nearest_path(directory)}")
    if not file.is_file():
        raise ValueError(
            f"{directory} has no config.json; name a folder as the Hugging Face hub has it, or write one: "
            'the sizes of RWKV-7 follow from its tensors, for which {"model_type": "rwkv7"} is enough'
        )
    return Fields(read_json(file, dict), str(file), ignored)


def _json(value: Any) -> str:
    text = {True: "true", False: "false", None: "null"}[value] if isinstance(value, bool | None) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
