# bivouac-broker as one allocation, beside the folder that has its keyring: made once, on
# that node, with bivouac-broker init.
#
#   nomad job run jobs/broker.nomad.hcl

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
  default = "/usr/local/bin/bivouac-broker"
}

variable "data" {
  type        = string
  default     = "/var/lib/bivouac/broker"
  description = "Path of the host volume bivouac-broker on the node: keyring, call log, broker.hcl."
}

variable "listen" {
  type        = string
  default     = "0.0.0.0:7402"
  description = "Where the server and the relays of runners reach it, TCP and UDP."
}

variable "server" {
  type        = string
  default     = "127.0.0.1:7401"
  description = "The server's listener for machines, for the feed."
}

job "bivouac-broker" {
  namespace   = var.namespace
  node_pool   = var.node_pool
  datacenters = ["*"]
  type        = "service"

  group "broker" {
    count = 1

    network {
      port "broker" {
        static = 7402
      }
    }

    volume "data" {
      type   = "host"
      source = "bivouac-broker"
    }

    restart {
      attempts = 10
      interval = "10m"
      delay    = "5s"
      mode     = "delay"
    }

    # The keyring is on this node.
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "broker" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "15s"

      config {
        command = var.program
        args    = ["run", "--data", var.data, "--listen", var.listen, "--server", var.server]
      }

      resources {
        cpu    = 500
        memory = 256
      }
    }
  }
}
