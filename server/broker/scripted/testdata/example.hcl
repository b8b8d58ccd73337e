# A personal turn: list, read, then tell what was found.

rule "list" {
  when {
    user_matches = "(?i)what is in (?P<folder>[\\w/.-]+)"
    results      = 0
    offers       = ["files_list"]
  }
  text = "I will look into ${user.folder}."
  call "files_list" {
    arguments = { path = user.folder }
  }
}

rule "read both" {
  when {
    result_of      = "files_list"
    result_matches = "(?P<first>\\w+\\.txt)\\s+(?P<second>\\w+\\.txt)"
  }
  call "files_read" {
    arguments = { path = result.first }
  }
  call "files_read" {
    arguments = { path = result.second, max_bytes = 100 }
  }
}

rule "learned from an output" {
  when {
    any_result_matches = "want (?P<nonce>[0-9a-f]+)"
    results            = 2
  }
  text        = "The nonce is ${upper(any.nonce)}: ${trimspace(last_result)}"
  chunk_runes = 4
  usage {
    input  = 100
    output = 20
  }
}

rule "slow down" {
  when {
    user_contains = "too many"
  }
  error {
    status      = 429
    retry_after = "2s"
    message     = "slow down"
  }
}

rule "server trouble" {
  when {
    user_contains = "trouble"
  }
  error {
    status = 500
  }
}

rule "garbage" {
  when {
    user_contains = "garbage"
  }
  garbage = true
}

rule "half a stream" {
  when {
    user_contains = "half"
  }
  text        = "this will not be whole"
  chunk_runes = 4
  cut_after   = 2
}

rule "cut by its limit" {
  when {
    user_contains = "essay"
  }
  text   = "It was a dark and"
  length = true
}

rule "malformed call" {
  when {
    user_contains = "malformed"
  }
  call "files_read" {
    raw_arguments = "{\"path\": "
  }
}

rule "slowly" {
  when {
    user_contains = "slowly"
  }
  text        = "one two three"
  delay       = "10ms"
  chunk_delay = "1ms"
  chunk_runes = 4
}
