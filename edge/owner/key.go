package owner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"

	"bivouac/edge/device"
	"bivouac/edge/protocol/secondkey"
)

// keyed is what a second key can be held over. files.digest is part of a write,
// which is asked about as a whole.
var keyed = []string{device.List, device.Read, device.Write, secondkey.Turn}

// SecondKey says that one kind of work is done on this machine only after its owner
// approved it here, whatever the server was told. It is for a server that somebody
// else runs, or took over.
type SecondKey struct {
	// Over is a device action, or secondkey.Turn.
	Over string
	// TTL is how long a question waits; then the work is denied.
	TTL time.Duration
}

// defaultKeyTTL is of a block that says nothing; maxKeyTTL bounds every one.
const (
	defaultKeyTTL = 30 * time.Minute
	minKeyTTL     = 10 * time.Second
	maxKeyTTL     = 24 * time.Hour
)

var keySchema = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "ttl"}}}

// KeyOver is the second key over a kind of work; ok is false where none is held.
func (p Policy) KeyOver(kind string) (k SecondKey, ok bool) {
	i := slices.IndexFunc(p.SecondKeys, func(k SecondKey) bool { return k.Over == kind })
	if i < 0 {
		return SecondKey{}, false
	}
	return p.SecondKeys[i], true
}

// KeyNames are advertised to the server, sorted.
func (p Policy) KeyNames() []string {
	var out []string
	for _, k := range p.SecondKeys {
		out = append(out, k.Over)
	}
	slices.Sort(out)
	return out
}

func (r *reader) secondKey(b *hcl.Block, p *Policy) {
	k := SecondKey{Over: b.Labels[0], TTL: defaultKeyTTL}
	c, diags := b.Body.Content(keySchema)
	r.note(diags)
	switch _, twice := p.KeyOver(k.Over); {
	case !slices.Contains(keyed, k.Over):
		r.say(b.DefRange, "second_key %q: there is no such work: %s and %s are", k.Over, strings.Join(keyed[:len(keyed)-1], ", "), secondkey.Turn)
	case twice:
		r.say(b.DefRange, "there are two second_keys over %q: keep one", k.Over)
	}
	var ttl string
	if text(r, c, "ttl", &ttl); ttl != "" {
		d, err := time.ParseDuration(ttl)
		if err != nil || d < minKeyTTL || d > maxKeyTTL {
			r.say(c.Attributes["ttl"].Range, "second_key %s: ttl must be a duration from %s to %s, such as \"30m\"", k.Over, plainly(minKeyTTL), plainly(maxKeyTTL))
			d = minKeyTTL
		}
		k.TTL = d
	}
	p.SecondKeys = append(p.SecondKeys, k)
}

// plainly writes a duration as people write it in the file.
func plainly(d time.Duration) string {
	if d%time.Hour == 0 {
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	if d%time.Minute == 0 {
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}
