"""Random models small enough to run in milliseconds."""

def tiny(family="llama", seed=0, hidden=32, layers=2, heads=4, vocab=64, **options):
    """A random causal language model of a paper's family, float32, in evaluation mode."""
    import torch
    import transformers

    shape = {
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads,
        "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": None,
        "pad_token_id": None,
        # No special tokens: transformers masks padding ids that it finds in the text.
        # A wider spread of weights makes output that is not the same token all along.
        "initializer_range": 0.3,
    }
    names = {"llama": "Llama", "neox": "GPTNeoX", "qwen2": "Qwen2"}
    if family != "neox":
        shape["num_key_value_heads"] = heads // 2
    torch.manual_seed(seed)
    config = getattr(transformers, f"{names[family]}Config")(**{**shape, **options})
    return getattr(transformers, f"{names[family]}ForCausalLM")(config).eval()


def greedy(model, prompt, draft=None, n=40, **options):
    """Greedy generation, speculative where a draft is given; ids with the prompt."""
    return model.generate(
        prompt, max_new_tokens=n, do_sample=False, assistant_model=draft, **options
    )
