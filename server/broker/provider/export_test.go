package provider

import (
	"io"

	"bivouac/server/broker/secret"
)

// ReadStream reads one stream without a connection.
func ReadStream(name string, in io.Reader) (*Answer, error) {
	r := secret.NewRedactor()
	f := formats[name]
	b := &builder{route: "r", speaks: f.speaks, redactor: r, stream: r.Stream(), onDelta: func(string) error { return nil }}
	if err := readEvents(in, f.reader(b), b); err != nil {
		return nil, err
	}
	return b.answer()
}
