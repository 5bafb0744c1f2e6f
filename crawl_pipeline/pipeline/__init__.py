"""What a crawl does, step by step: the layers below joined, no Dagster."""
