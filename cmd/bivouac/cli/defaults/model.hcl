# What the scripted provider of `bivouac dev` answers. It is no model: it follows
# these rules, so that everything can be tried without a key. Point a route of
# broker.hcl at a real provider to talk to one.

# Where several machines offer the same, a prompt names one: "read notes/todo.txt on laptop".

rule "show the folders of one machine" {
  when {
    user_matches = "(?i)(what|which|show|list).*(folders|files|have) on (?P<machine>[^?:]+)"
    results      = 0
    choice       = "files_list.machine"
  }
  text = "I will look on ${user.machine}."
  call "files_list" {
    arguments = { path = "", machine = user.machine }
  }
}

rule "read a file of one machine" {
  when {
    user_matches = "(?i)\\bread (?P<path>[\\w./-]+) on (?P<machine>[^:]+)"
    results      = 0
    choice       = "files_read.machine"
  }
  call "files_read" {
    arguments = { path = user.path, machine = user.machine }
  }
}

rule "write a file of one machine" {
  when {
    user_matches = "(?i)write (?P<path>[\\w./-]+) on (?P<machine>[^:]+): (?P<text>.+)"
    results      = 0
    choice       = "files_write.machine"
  }
  text = "I will write ${user.path} on ${user.machine}, if you allow it."
  call "files_write" {
    arguments = { path = user.path, content = "${user.text}\n", machine = user.machine }
  }
}

rule "write a file of one machine, named last" {
  when {
    user_matches = "(?i)write (?P<path>[\\w./-]+): (?P<text>.+) on (?P<machine>.+)"
    results      = 0
    choice       = "files_write.machine"
  }
  text = "I will write ${user.path} on ${user.machine}, if you allow it."
  call "files_write" {
    arguments = { path = user.path, content = "${user.text}\n", machine = user.machine }
  }
}

rule "ask which machine to look on" {
  when {
    user_matches = "(?i)(what|which|show|list).*(folders|files|have)"
    results      = 0
    choice       = "files_list.machine"
  }
  text = "Several machines of yours offer folders: ${join(", ", choices)}. Say on which, such as: which folders do you have on ${choices[0]}"
}

rule "ask which machine to read on" {
  when {
    user_matches = "(?i)\\bread (?P<path>[\\w./-]+)"
    results      = 0
    choice       = "files_read.machine"
  }
  text = "Several machines of yours offer files to read: ${join(", ", choices)}. Say on which, such as: read ${user.path} on ${choices[0]}"
}

rule "ask which machine to write on" {
  when {
    user_matches = "(?i)write (?P<path>[\\w./-]+)[^:]*: (?P<text>.+)"
    results      = 0
    choice       = "files_write.machine"
  }
  text = "Several machines of yours let files be written: ${join(", ", choices)}. Say on which, such as: write ${user.path} on ${choices[0]}: ${user.text}"
}

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
    user_matches = "(?i)\\bread (?P<path>[\\w./-]+)"
    results      = 0
    offers       = ["files_read"]
  }
  call "files_read" {
    arguments = { path = user.path }
  }
}

rule "write a file" {
  when {
    user_matches = "(?i)write (?P<path>[\\w./-]+)( on [^:]+)?: (?P<text>.+)"
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

rule "no folder to write to" {
  when {
    user_matches = "(?i)\\bwrite [\\w./-]+"
    results      = 0
    offers       = ["files_read"]
  }
  text = "Your machine lets files be read, and none be written: say files.write in the actions of the folder in its edge.hcl, which is in force when it is saved. bivouac tools effective says what an agent is offered, and why not the rest."
}

rule "no folder yet" {
  when {
    user_matches = "(?i)((what|which|show|list).*(folders|files|have)|\\b(read|write) [\\w./-]+)"
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
  text = "I follow a script, not a model. Ask me \"which folders do you have\", \"read notes/todo.txt\", \"write notes/todo.txt: buy milk\" (or \"… on laptop\", where you have several machines), or with bivouac run \"run: ls\". README says how to use a real model."
}
