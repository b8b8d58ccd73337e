# Runners of Bivouac on every node of a pool: one warm bivouac-edge a node, to which the
# server gives turns. Nomad starts it and starts it again; which turn runs where, and
# whether it still does, the server decides.
#
#   nomad job run -var server=https://bivouac.example.org:7401 \
#     -var fingerprint=$(…)  -var audience=bivouac.example.org  jobs/runner.nomad.hcl
#
# What each node needs before: jobs/README.md.

variable "server" {
  type        = string
  description = "The server's listener for runners, https://HOST:7401."
}

variable "fingerprint" {
  type        = string
  description = "Fingerprint of the deployment's root, as bivouac-broker init prints it."
}

variable "audience" {
  type        = string
  description = "audience of enrol in server.hcl."
}

variable "namespace" {
  type    = string
  default = "agents"
}

variable "node_pool" {
  type    = string
  default = "agents"
}

variable "program" {
  type        = string
  default     = "/usr/local/bin/bivouac-edge"
  description = "bivouac-edge on the node, with bivouac-worker beside it."
}

variable "state" {
  type        = string
  default     = "/var/lib/bivouac-edge"
  description = "Path of the host volume bivouac-edge on the node: the runner's key, which survives the allocation."
}

variable "slots" {
  type        = number
  default     = 4
  description = "Turns at once, in the edge.hcl that is written where there is none."
}

job "bivouac-runner" {
  namespace   = var.namespace
  node_pool   = var.node_pool
  datacenters = ["*"]
  type        = "system"

  group "runner" {
    # Places the job on nodes that have the folder. raw_exec sees it by its path and
    # mounts nothing; the volume is not sticky, which a system job may not be.
    volume "state" {
      type   = "host"
      source = "bivouac-edge"
    }

    restart {
      attempts = 5
      interval = "5m"
      delay    = "5s"
      mode     = "delay"
    }

    # While Nomad does not reach the node the runner stays what it is, with its turns.
    # When the node is back it goes on, also over a reboot.
    disconnect {
      lost_after = "8760h"
      replace    = false
      reconcile  = "keep_original"
    }

    task "edge" {
      driver = "raw_exec"

      # Ends turns when it is stopped, so that they go on elsewhere from their
      # checkpoints at once and not after their leases. Turns in allocations of
      # their own (allocation = "own") are jobs of the server's, with the same
      # program and state, and Nomad's to end.
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      config {
        command = var.program
        args = [
          "run", "--end-turns",
          "--state", var.state,
          "--enrol-server", var.server,
          "--enrol-fingerprint", var.fingerprint,
          "--enrol-identity-file", "${NOMAD_SECRETS_DIR}/nomad_bivouac.jwt",
          "--enrol-name", "${node.unique.name}",
          "--enrol-slots", "${var.slots}",
        ]
      }

      identity {
        name        = "bivouac"
        aud         = [var.audience]
        file        = true
        ttl         = "15m"
        change_mode = "noop"
      }

      resources {
        cpu    = 500
        memory = 512
      }
    }
  }
}
