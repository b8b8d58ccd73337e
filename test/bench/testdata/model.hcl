# An instant provider: what is measured is everything else.

rule "one device action" {
  when {
    user_contains = "read my note"
    results       = 0
  }
  call "files_read" {
    arguments = { path = "notes/note.txt" }
  }
}

rule "first instruction" {
  when {
    user_contains = "what time is it"
    results       = 0
  }
  call "shell" {
    arguments = { command = "date +%s%N" }
  }
}

rule "a worker at rest" {
  when {
    user_contains = "rest"
  }
  text  = "rested"
  delay = "4s"
}

rule "answer" {
  text = "done"
}
