# bivouac-server as one allocation. Its state is a host volume, or PostgreSQL: several
# servers (count) need the latter, in server.hcl.
#
#   nomad job run -var code_file=/etc/bivouac/server-code jobs/server.nomad.hcl

variable "namespace" {
  type    = string
  default = "agents"
}

variable "node_pool" {
  type    = string
  default = "default"
}

variable "program" {
  type    = string
  default = "/usr/local/bin/bivouac-server"
}

variable "config" {
  type        = string
  default     = "/etc/bivouac/server.hcl"
  description = "server.hcl on the node: addresses, the database, the nomad block."
}

variable "data" {
  type        = string
  default     = "/var/lib/bivouac/server"
  description = "Path of the host volume bivouac-server on the node."
}

variable "code_file" {
  type        = string
  default     = ""
  description = "File on the node with the code of bivouac-broker server-code, for the first start."
}

job "bivouac-server" {
  namespace   = var.namespace
  node_pool   = var.node_pool
  datacenters = ["*"]
  type        = "service"

  group "server" {
    count = 1

    network {
      port "api" {
        static = 7400
      }
      port "runners" {
        static = 7401
      }
    }

    volume "data" {
      type   = "host"
      source = "bivouac-server"
    }

    restart {
      attempts = 10
      interval = "10m"
      delay    = "5s"
      mode     = "delay"
    }

    # The database is on this node: elsewhere there is another one.
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "server" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "15s"

      config {
        command = var.program
        args = concat(
          ["--config", var.config, "--data", var.data, "--log-json"],
          var.code_file == "" ? [] : ["--broker-code-file", var.code_file],
        )
      }

      resources {
        cpu    = 1000
        memory = 512
      }
    }
  }
}
