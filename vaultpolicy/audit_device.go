package vaultpolicy

import (
	"context"

	"bivouac/edge/finding"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
)

// ExamineAudit looks whether a device of the server writes to where the broker listens.
// An admin's token sees it; the broker's does not.
func (f File) ExamineAudit(ctx context.Context, r *finding.Report, token secret.Value) {
	if f.Audit == nil {
		return
	}
	kind, option, path := "file", "file_path", f.Audit.File
	enable := "vault audit enable file file_path=" + f.path(path) + " mode=0640"
	if f.Audit.Socket != "" {
		kind, option, path = "socket", "address", f.Audit.Socket
		enable = "vault audit enable -path=bivouac socket address=" + f.path(path) + " socket_type=unix"
	}
	path = f.path(path)
	root := f.Config
	root.Namespace = "" // audit devices are the whole server's
	c, err := root.Client()
	if err == nil {
		defer c.Close()
		var all client.Answer
		if all, err = c.Read(ctx, token, "sys/audit"); err == nil {
			for at, device := range all.Data {
				d, _ := device.(map[string]any)
				options, _ := d["options"].(map[string]any)
				if client.Text(d["type"]) == kind && client.Text(options[option]) == path {
					r.Fine("vault.audit.device", "%s writes to the %s %s", at, kind, path)
					return
				}
			}
		}
	}
	if err != nil {
		r.Warn("vault.audit.device", "whether a device of the server writes to "+path+" is not seen: "+err.Error(), whyAudit, "vault audit list -detailed  (with a token that may read sys/audit, which needs sudo, in the root namespace)")
		return
	}
	r.Warn("vault.audit.device", "no audit device of the server is a "+kind+" at "+path, whyAudit, enable+"  (a server in a container may see the same place at another path: vault audit list -detailed)")
}
