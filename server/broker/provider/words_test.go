package provider

import (
	"strings"
	"testing"

	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/secret"
)

// INV-17: what a provider says of a request that it refuses, and the arguments that its
// model writes, hold no key, nor one that is written with escapes.
func TestWordsHoldNoKey(t *testing.T) {
	key, err := secret.New("sk-c2VjcmV0+value/of+the+broker")
	if err != nil {
		t.Fatal(err)
	}
	r := secret.NewRedactor(key)
	for name, written := range map[string]string{
		"plain": key.Reveal(), "as .NET": strings.ReplaceAll(key.Reveal(), "+", `\u002B`), "percent": strings.ReplaceAll(key.Reveal(), "+", "%2B"),
	} {
		said := providerText([]byte(`{"error":{"message":"a 5\" disk has `+strings.ReplaceAll(written, `\`, `\\`)+` on it"}}`), r)
		if said != `a 5" disk has `+secret.Mark+` on it` {
			t.Errorf("%s: it said %s", name, said)
		}
		b := &builder{redactor: r, stream: r.Stream(), onDelta: func(string) error { return nil }, stop: runtimev1.StopReason_STOP_REASON_TOOL_CALLS}
		c := &builtCall{name: "look"}
		c.args.WriteString(`{"a":"\u00e9 ` + written + `"}`)
		b.calls = append(b.calls, c)
		a, err := b.answer()
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Message.Blocks[0].GetToolCall().Arguments; got != `{"a":"\u00e9 `+secret.Mark+`"}` {
			t.Errorf("%s: arguments %s", name, got)
		}
	}
}

// INV-17: the text that a model writes, delta by delta, holds no key, however it is written
// and wherever it is divided; what is no key goes out as soon as it comes.
func TestDeltasHoldNoKey(t *testing.T) {
	key, err := secret.New("sk-c2VjcmV0+value/of+the+broker")
	if err != nil {
		t.Fatal(err)
	}
	r := secret.NewRedactor(key)
	for name, written := range map[string]string{
		"plain": key.Reveal(), "as .NET": strings.ReplaceAll(key.Reveal(), "+", `\u002B`), "HTML": strings.ReplaceAll(key.Reveal(), "+", "&#43;"),
	} {
		text := "it is " + written + ", I think"
		for at := range len(text) {
			var deltas []string
			b := &builder{redactor: r, stream: r.Stream(), onDelta: func(d string) error { deltas = append(deltas, d); return nil }, stop: runtimev1.StopReason_STOP_REASON_END}
			for _, piece := range []string{"100% ", text[:at], text[at:]} {
				if err := b.addText(piece); err != nil {
					t.Fatal(err)
				}
			}
			a, err := b.answer()
			if err != nil {
				t.Fatal(err)
			}
			want := "100% it is " + secret.Mark + ", I think"
			if got := a.Message.Blocks[0].GetText(); got != want || strings.Join(deltas, "") != want || deltas[0] != "100% " {
				t.Fatalf("%s, divided at %d: %q in %q", name, at, got, deltas)
			}
		}
	}
}
