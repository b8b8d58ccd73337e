# What the scripted provider of `bivouac dev` answers. It is no model: it follows
# these rules, so that everything can be tried without a key. Point a route of
# broker.hcl at a real provider to talk to one.

rule "show the folders" {
  when {
    user_matches = "(?i)(what|which|show|list).*(folders|files|have)"
    results      = 0
    offers       = ["files_list"]
  }
  text = "I will look."
  call "files_list" {
    arguments = { path = "" }
  }
}

rule "read a file" {
  when {
    user_matches = "(?i)read (?P<path>[\\w./-]+)"
    results      = 0
    offers       = ["files_read"]
  }
  call "files_read" {
    arguments = { path = user.path }
  }
}

rule "write a file" {
  when {
    user_matches = "(?i)write (?P<path>[\\w./-]+): (?P<text>.+)"
    results      = 0
    offers       = ["files_write"]
  }
  text = "I will write ${user.path}, if you allow it."
  call "files_write" {
    arguments = { path = user.path, content = "${user.text}\n" }
  }
}

rule "run a command" {
  when {
    user_matches = "(?i)run: (?P<command>.+)"
    results      = 0
    offers       = ["shell"]
  }
  call "shell" {
    arguments = { command = user.command }
  }
}

rule "no folder yet" {
  when {
    user_matches = "(?i)((what|which|show|list).*(folders|files|have)|(read|write) [\\w./-]+)"
    results      = 0
  }
  text = "No machine of yours offers a folder yet: say one in edge.hcl there, or begin with bivouac dev --data DIR --allow-folder notes=PATH:rw. bivouac edge list shows what each machine offers."
}

rule "tell what came back" {
  when {
    any_result_matches = "(?s)(?P<all>.+)"
  }
  text = "This is what I got:\n${any.all}"
}

rule "say what this is" {
  text = "I follow a script, not a model. Ask me \"which folders do you have\", \"read notes/todo.txt\", \"write notes/todo.txt: buy milk\", or with bivouac run \"run: ls\". README says how to use a real model."
}
