# The demo's model. It learns from what it is shown: the folder's listing, the
# files' text, the forecast, and the output of the test it ran.

# ---- the personal turn ----

rule "look into the folder" {
  when {
    user_contains = "packing list"
    results       = 0
    offers        = ["files_list"]
  }
  text = "I will look at your notes first."
  call "files_list" {
    arguments = { path = "notes" }
  }
}

rule "read both and ask for the weather, at once" {
  when {
    user_contains = "packing list"
    result_of     = "files_list"
  }
  call "files_read" {
    arguments = { path = "notes/trip.txt" }
  }
  call "files_read" {
    arguments = { path = "notes/gear.txt" }
  }
  call "forecast" {
    arguments = { city = "Bergen" }
  }
}

rule "write the list" {
  when {
    user_contains      = "packing list"
    any_result_matches = "\"sky\":\\s*\"(?P<sky>[a-z ]+)\""
    result_of          = "forecast"
  }
  text = "It will be ${any.sky}. I will write the list into your notes."
  call "files_write" {
    arguments = {
      path    = "notes/packing.txt"
      content = "Bergen, ${any.sky}\n- rain jacket\n- tent\n- stove\n"
    }
  }
}

rule "done" {
  when {
    user_contains = "packing list"
    result_of     = "files_write"
  }
  text = "Your packing list for Bergen is in notes/packing.txt."
}

# ---- the coding turn ----

rule "run the test" {
  when {
    user_contains = "failing test"
    results       = 0
    offers        = ["shell"]
  }
  text = "I will run the test to see what it wants."
  call "shell" {
    arguments = { command = "go test ./..." }
  }
}

rule "fix what it wants" {
  when {
    user_contains  = "failing test"
    result_of      = "shell"
    result_matches = "Answer\\(\\) = .*, want \"(?P<nonce>[A-Z0-9]+)\""
  }
  text = "The test wants ${result.nonce}."
  call "write_file" {
    arguments = {
      path    = "answer.go"
      content = "package answer\n\n// Answer is what the test asks for.\nfunc Answer() string { return \"${result.nonce}\" }\n"
    }
  }
}

rule "run it again" {
  when {
    user_contains = "failing test"
    result_of     = "write_file"
  }
  call "shell" {
    arguments = { command = "go test ./..." }
  }
}

rule "it passes" {
  when {
    user_contains   = "failing test"
    result_of       = "shell"
    result_contains = "ok"
  }
  text = "The test passes now; I changed answer.go."
}
