# bivouac-server, one allocation on a node whose host volume bivouac-server has its data:
# made once, there, with bivouac-server bootstrap. Several need PostgreSQL in server.hcl,
# each on a node of its own with a code of its own.
#
#   nomad job run -var code_file=/etc/bivouac/server-code jobs/server.nomad.hcl
#
# What the node needs before: jobs/README.md.

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

variable "api_port" {
  type        = number
  default     = 7400
  description = "Port of public in server.hcl."
}

variable "runners_port" {
  type        = number
  default     = 7401
  description = "Port of runners in server.hcl, TCP and UDP."
}

variable "servers" {
  type        = number
  default     = 1
  description = "How many, on as many nodes; more than one share a PostgreSQL database."
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
    count = var.servers

    network {
      port "api" {
        static = var.api_port
      }
      port "runners" {
        static = var.runners_port
      }
    }

    # Places the job on nodes that have the folder. raw_exec sees it by its path.
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

    # The data is on this node: elsewhere there is another server's, or none.
    reschedule {
      attempts  = 0
      unlimited = false
    }

    # While Nomad does not reach the node, what runs there stays what it is, and nothing
    # is put in its place. When the node is back it goes on, also over a reboot.
    disconnect {
      lost_after = "8760h"
      replace    = false
      reconcile  = "keep_original"
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
