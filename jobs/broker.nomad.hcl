# bivouac-broker as one allocation, on the node whose host volume bivouac-broker has its
# keyring: made once, there, with bivouac-broker init. Run it before the server, and
# never twice: a broker is one.
#
#   nomad job run jobs/broker.nomad.hcl
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
  default = "/usr/local/bin/bivouac-broker"
}

variable "data" {
  type        = string
  default     = "/var/lib/bivouac/broker"
  description = "Path of the host volume bivouac-broker on the node: keyring, call log, broker.hcl."
}

variable "address" {
  type        = string
  default     = "0.0.0.0"
  description = "Where it listens for the server and the relays of runners. Whose feed it follows is servers in broker.hcl."
}

variable "port" {
  type        = number
  default     = 7402
  description = "Port at that address, TCP and UDP."
}

variable "passphrase_file" {
  type        = string
  default     = ""
  description = "File on the node with the keyring's passphrase, mode 0600, where it has one."
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
        static = var.port
      }
    }

    # Places the job on the node that has the folder. raw_exec sees it by its path.
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

    # While Nomad does not reach the node, what runs there stays what it is, and nothing
    # is put in its place. When the node is back it goes on, also over a reboot.
    disconnect {
      lost_after = "8760h"
      replace    = false
      reconcile  = "keep_original"
    }

    task "broker" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "15s"

      config {
        command = var.program
        args = concat(
          ["run", "--data", var.data, "--listen", "${var.address}:${var.port}"],
          var.passphrase_file == "" ? [] : ["--passphrase-file", var.passphrase_file],
        )
      }

      resources {
        cpu    = 500
        memory = 256
      }
    }
  }
}
