model "main" {
  base_url        = "https://api.example/v1"
  model           = "m"
  data_boundaries = ["personal"]
}

destination "weather" {
  url = "https://weather.example"
}

consul {
  token_file = "consul.token"
}
