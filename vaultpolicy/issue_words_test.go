package vaultpolicy

import (
	"fmt"
	"strings"
	"testing"

	"bivouac/vaultpolicy/client"
)

// What an engine says is logged up to where it quotes: the password of a statement that
// failed is not, and what names the failure is.
func TestEngineWords(t *testing.T) {
	for said, kept := range map[string]string{
		`1 error occurred: * failed to execute query: CREATE ROLE "v-x" WITH PASSWORD 'canary' LOGIN`: "failed to execute query: CREATE ROLE",
		`error: ALTER USER x IDENTIFIED BY canary`:                                                    "error: ALTER USER x",
		`cannot connect to postgres://admin:canary@db:5432/x`:                                         "cannot connect to postgres",
		`command failed: {createUser: x, pwd: canary}`:                                                "command failed: {createUser: x",
		"near `canary`":                   "near",
		`it isn't there: password=canary`: "it isn",
		`error verifying connection: dial tcp 10.0.0.7:5432: connect: connection refused`: "dial tcp 10.0.0.7:5432: connect: connection refused",
	} {
		got := engineWords(fmt.Errorf("outside: %w", &client.Fault{Kind: client.Away, Status: 500, Verb: "read", Path: "database/creds/r", Said: said}))
		if strings.Contains(got, "canary") || !strings.Contains(got, kept) || !strings.HasPrefix(got, "read database/creds/r: 500: ") {
			t.Errorf("%s\nis logged as %s", said, got)
		}
		if whole := strings.HasSuffix(got, said); whole == strings.Contains(got, "withheld") {
			t.Errorf("%s\nis logged as %s, which does not say whether it is whole", said, got)
		}
	}
}
