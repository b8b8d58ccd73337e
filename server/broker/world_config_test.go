package broker_test

// hclConfig is the broker of every world.
const hclConfig = `
vault {}
destination "reports" {
  url = "http://tools.example/reports"
  allow_private = true
  credential "reports-db" {
    from "database" {
      role = "reports-ro"
    }
  }
  credential "reports-split" {
    from "database" {
      role            = "reports-ro"
      username_header = "X-User"
      password_header = "X-Key"
    }
  }
  credential "reports-sign" {
    from "transit" {
      key = "partner"
    }
  }
}
pool    = "default"
servers = ["` + serverAddr + `"]
model "main" {
  base_url = "http://provider.example/v1"
  allow_private = true
  model = "gpt-x"
  credential = "provider-key"
  data_boundaries = ["personal"]
  max_output_tokens = 1000
  price {
    input_usd_per_mtok = 3
    output_usd_per_mtok = 10
  }
}
model "unpriced" {
  base_url = "http://provider.example/v1"
  allow_private = true
  model = "gpt-x"
  data_boundaries = ["personal"]
}
model "public" {
  base_url = "https://provider.example/v1"
  model = "gpt-x"
  data_boundaries = ["personal"]
  price {
    input_usd_per_mtok = 0
    output_usd_per_mtok = 0
  }
}
model "lent" {
  base_url = "http://provider.example/v1"
  allow_private = true
  model = "gpt-x"
  credential = "lent-key"
  credential_tenant = "ten_00000000000000000000000001"
  data_boundaries = ["personal"]
  price {
    input_usd_per_mtok = 0
    output_usd_per_mtok = 0
  }
}
model "claude" {
  format = "anthropic"
  base_url = "http://provider.example/v1"
  allow_private = true
  model = "claude-x"
  credential = "provider-key"
  data_boundaries = ["personal"]
  idle_timeout = "30s"
  price {
    input_usd_per_mtok = 3
    output_usd_per_mtok = 10
    cache_read_usd_per_mtok = 1
    cache_write_usd_per_mtok = 5
  }
}
model "responses" {
  format = "openai-responses"
  base_url = "http://provider.example/v1"
  allow_private = true
  model = "gpt-x"
  credential = "provider-key"
  credential_header = "x-api-key"
  data_boundaries = ["personal"]
  price {
    input_usd_per_mtok = 3
    output_usd_per_mtok = 10
  }
}
destination "weather" {
  url = "http://tools.example/api"
  allow_private = true
  methods = ["GET", "POST"]
  credential "weather-key" {}
}
oauth2 "calendar" {
  token_url = "http://tools.example/token"
  allow_private = true
  client_id = "bivouac"
}
destination "calendar" {
  url = "http://tools.example/cal"
  allow_private = true
  credential "calendar" {}
}
destination "lists" {
  url = "http://tools.example/api"
  allow_private = true
  credential "weather-key" {}
  pages {
    by = "link"
  }
}
destination "modules" {
  url = "http://tools.example/mod"
  allow_private = true
  data_boundaries = ["personal"]
  egress {
    protocol = "go"
    max_mib_per_turn = 1
    max_open = 2
  }
}
destination "forge" {
  url = "http://tools.example/git"
  allow_private = true
  data_boundaries = ["personal"]
  credential "weather-key" {}
  egress {
    protocol = "git"
    credential = "weather-key"
  }
}
destination "hidden" {
  url = "https://tools.example"
  data_boundaries = ["personal"]
  egress {
    protocol = "npm"
  }
}
destination "unlisted" {
  url = "http://tools.example"
  allow_private = true
  data_boundaries = ["personal"]
  egress {
    protocol = "npm"
  }
}
destination "elsewhere" {
  url = "http://tools.example/other"
  allow_private = true
  data_boundaries = ["business"]
  egress {
    protocol = "go"
  }
}
destination "inside" {
  url = "https://tools.example"
}
destination "tickets" {
  url = "http://10.9.0.3/mcp"
  allow_private = true
  data_boundaries = ["personal"]
  credential "weather-key" {}
  mcp {
    credential = "weather-key"
    timeout = "2m"
  }
}
destination "indoors" {
  url = "https://10.9.0.3/mcp"
  mcp {}
}
caps {
  spend_usd_per_hour = 1
  tenant "capped" {
    models = ["unpriced"]
    destinations = []
  }
  tenant "poor" {
    spend_usd_per_hour = 0.001
  }
}
`

// script of its provider.
const script = `
rule "hello" {
  when { user_contains = "hello" }
  text = "Hello, you."
  chunk_runes = 3
  usage {
    input = 100
    output = 10
  }
}
rule "cached" {
  when { user_contains = "cached" }
  text = "Hello again."
  usage {
    input = 1000
    output = 10
    cache_read = 600
    cache_write = 300
  }
}
rule "half" {
  when { user_contains = "half" }
  text = "this is not all of it"
  chunk_runes = 3
  end_after = 4
}
rule "stall" {
  when { user_contains = "stall" }
  text = "this is not all of it"
  chunk_runes = 3
  stall_after = 4
}
rule "slow" {
  when { user_contains = "slowly" }
  text = "!!!!!!"
  chunk_runes = 1
  chunk_delay = "20s"
}
rule "echo" {
  when { user_contains = "echo" }
  text = "the key is ` + modelKey + `"
}
rule "429" {
  when { user_contains = "429" }
  error {
    status = 429
    retry_after = "7s"
  }
}
`
