model "main" {
  base_url        = "https://api.example/v1"
  model           = "m"
  credential      = "openai"
  data_boundaries = ["personal"]
}

destination "weather" {
  url = "https://weather.example"
  credential "weather-token" {}
}

vault {
  prefix            = "$PREFIX"
  tenants           = ["ten_01arz3ndektsv4rrffq69g5fav"]
  tokens_per_second = -1
  auth "approle" {
    mount          = "$PREFIX-approle"
    role_id_file   = "role-id"
    secret_id_file = "secret-id"
  }
  audit {
    file = "$AUDIT"
  }
}
