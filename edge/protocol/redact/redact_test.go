package redact

import (
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	long := strings.Repeat("aB3", 20)
	for name, c := range map[string]struct {
		in, want string
		n        int
	}{
		"nothing":       {"The sky is blue; task sk-1, eyJust kidding, https://example.com/a:b@c", "The sky is blue; task sk-1, eyJust kidding, https://example.com/a:b@c", 0},
		"pem":           {"a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nb", "a\n[redacted: private key]\nb", 1},
		"pem cut":       {"-----BEGIN PRIVATE KEY-----\nMIIE", "[redacted: private key]", 1},
		"certificate":   {"-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----", "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----", 0},
		"two keys":      {"AKIA" + "IOSFODNN7EXAMPLE and ASIA" + "IOSFODNN7EXAMPLE", "[redacted: aws key] and [redacted: aws key]", 2},
		"aws secret":    {"aws_secret_access_key = " + long[:40], "aws_secret_access_key = [redacted: aws key]", 1},
		"github":        {"token ghp_" + long[:36] + ".", "token [redacted: github token].", 1},
		"github fine":   {"github_pat_" + long[:30], "[redacted: github token]", 1},
		"gitlab":        {"glpat-" + long[:20], "[redacted: gitlab token]", 1},
		"slack":         {"xoxb-" + long[:20], "[redacted: slack token]", 1},
		"google":        {"AIza" + long[:35], "[redacted: google key]", 1},
		"provider":      {"sk-proj-" + long[:40], "[redacted: provider key]", 1},
		"vault":         {"hvs." + long[:24], "[redacted: vault token]", 1},
		"age":           {"AGE-SECRET-KEY-1" + strings.ToUpper(long[:58]), "[redacted: age identity]", 1},
		"header":        {"Authorization: Bearer " + long[:12], "Authorization: Bearer [redacted: bearer token]", 1},
		"json header":   {`"authorization":"Basic ` + long[:12] + `"`, `"authorization":"Basic [redacted: bearer token]"`, 1},
		"bearer alone":  {"curl -H 'Bearer " + long[:24] + "'", "curl -H 'Bearer [redacted: bearer token]'", 1},
		"api key":       {"X-Api-Key: " + long[:12], "X-Api-Key: [redacted: api key]", 1},
		"web token":     {"eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl", "[redacted: web token]", 1},
		"url password":  {"postgres://app:s3cret@db:5432/x", "postgres://app:[redacted: password]@db:5432/x", 1},
		"prose":         {"The bearer of this letter is authorized: basic rules apply.", "The bearer of this letter is authorized: basic rules apply.", 0},
		"not a bearer":  {"Bearer bonds are rare", "Bearer bonds are rare", 0},
		"empty":         {"", "", 0},
		"short api key": {"x-api-key: none", "x-api-key: none", 0},
	} {
		got, n := Text(c.in)
		if got != c.want || n != c.n {
			t.Errorf("%s: %q, %d, want %q, %d", name, got, n, c.want, c.n)
		}
		if again, n := Text(got); again != got || n != 0 {
			t.Errorf("%s: redacted again to %q (%d)", name, again, n)
		}
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("Authorization: Bearer abcdefghijkl postgres://a:b@c -----BEGIN PRIVATE KEY-----")
	f.Fuzz(func(t *testing.T, text string) {
		got, n := Text(text)
		if (n == 0) != (got == text) {
			t.Fatalf("%d hits made %q of %q", n, got, text)
		}
		if again, n := Text(got); n != 0 {
			t.Fatalf("%q is redacted again to %q", got, again)
		}
	})
}
