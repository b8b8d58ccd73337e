# What the model of the scripts says beside the default script of bivouac dev,
# which follows it.

rule "think for a minute" {
  when { user_contains = "think it over" }
  text  = "I have thought it over."
  delay = "60s"
}

rule "read it soon" {
  when {
    user_matches = "soon read (?P<path>[\\w./-]+)"
    results      = 0
    offers       = ["files_read"]
  }
  delay = "3s"
  call "files_read" {
    arguments = { path = user.path }
  }
}

rule "think for a moment" {
  when { user_contains = "a moment" }
  text  = "There it is."
  delay = "1500ms"
}

rule "post an entry" {
  when {
    user_matches = "post (?P<id>\\S+)"
    results      = 0
    offers       = ["post"]
  }
  call "post" {
    arguments = { id = user.id }
  }
}
