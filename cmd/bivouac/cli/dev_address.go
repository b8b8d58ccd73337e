package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"strings"
	"syscall"

	"bivouac/cmd/internal/devdir"
	"bivouac/edge/durable"
	"bivouac/edge/filemode"
	"bivouac/edge/finding"
	"bivouac/edge/lockfile"
	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
)

// lock makes this the one bivouac dev of the directory, until release. Nothing in
// it is read or changed before.
func (d *dev) lock() (release func(), err error) {
	if err := os.MkdirAll(d.data, 0o700); err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the state directory %s cannot be made: %w; name another with --data", d.data, durable.Full(d.data, err))
	}
	if err := filemode.Policy(d.data); err != nil {
		return nil, err
	}
	l, err := lockfile.Take(d.path("dev.lock"))
	switch {
	case errors.Is(err, lockfile.ErrHeld):
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "another bivouac dev runs on %s: end it with Ctrl-C where it runs, or name another directory with --data", d.data)
	case durable.IsFull(err):
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the state directory %s cannot be written: %w", d.data, durable.Full(d.data, err))
	case err != nil:
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the state directory %s cannot be written: %w; give it to this user, or name another with --data", d.data, err)
	}
	return func() { _ = l.Release() }, nil // the process ends with it at the latest
}

// addresses replaces port 0 by a free port, the same one at every start: runners
// and files remember it. A taken port is found before anything starts. A start that
// names no address is one like the last.
func (d *dev) addresses() error {
	kept, err := d.keptAddresses()
	if err != nil {
		return err
	}
	moved := kept["model"]
	d.asLastTime(kept)
	for _, a := range []struct {
		flag  string
		value *string
		udp   bool
	}{{"public", &d.public, false}, {"runner", &d.runner, true}, {"broker", &d.broker, true}, {"model", &d.model, false}} {
		if strings.HasSuffix(*a.value, ":0") && kept[a.flag] != "" {
			*a.value = kept[a.flag]
		}
		if err := addressed(a.flag, *a.value); err != nil {
			return err
		}
		if err := settle(a.flag, a.value, a.udp); err != nil {
			return d.orNoEdge(a.flag, *a.value, err)
		}
		kept[a.flag] = *a.value
	}
	if !finding.Loopback(d.public) {
		return protocol.Errorf(protocol.CodeInvalidArgument,
			"--public %s is not loopback, and the API of bivouac dev has no certificate: tokens would cross a network in the clear. Leave it on 127.0.0.1, or run the parts by themselves, bivouac-server with --tls-cert and --tls-key: README, \"More than one machine\"", d.public)
	}
	if err := d.movable(moved); err != nil {
		return err
	}
	b, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	if err := writePrivate(d.path(devdir.AddressFile), append(b, '\n')); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the state directory %s cannot be written: %w", d.data, durable.Full(d.data, err))
	}
	return nil
}

// asLastTime takes the addresses of the last start where none is given, and for the
// server the one that this machine's runner dials.
func (d *dev) asLastTime(kept map[string]string) {
	if !d.bare {
		return
	}
	at := maps.Clone(kept)
	if dials := d.enrolment().Server; dials != "" && !d.noEdge {
		at["runner"] = dials
	}
	some := false
	for flag, value := range map[string]*string{"public": &d.public, "runner": &d.runner, "broker": &d.broker, "model": &d.model} {
		if at[flag] != "" && at[flag] != *value {
			*value, some = at[flag], true
		}
	}
	if some {
		fmt.Fprintf(d.err, "no address was given: started as the last time, by %s\n", d.path(devdir.AddressFile))
	}
}

func (d *dev) keptAddresses() (map[string]string, error) {
	kept, memory := map[string]string{}, d.path(devdir.AddressFile)
	b, err := os.ReadFile(memory)
	if errors.Is(err, fs.ErrNotExist) {
		return kept, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &kept)
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "%s is damaged: %w; remove it", memory, err)
	}
	return kept, nil
}

// movable refuses an address of the server that this machine's runner does not
// dial: its enrolment says which it does, and no start without it changes that.
// wasModel is where the model was.
func (d *dev) movable(wasModel string) error {
	if dials := d.enrolment().Server; !d.noEdge && dials != "" && dials != d.runner {
		kept, err := d.keptAddresses()
		if err != nil {
			return err
		}
		kept["runner"] = dials
		start := devdir.CommandAt(d.data, kept)
		return protocol.Errorf(protocol.CodeFailedPrecondition,
			"the runner in %s dials the server at %s, and --runner is %s: start it as the last time: `%s`; or add --no-edge, and it does not run; "+
				"or let it join anew at the new address, with its edge.hcl as it is: `%s` once more, there `bivouac-edge leave --state %s`, Ctrl-C, and this again",
			d.path("edge"), dials, d.runner, start, start, shellword.Quote(d.path("edge")))
	}
	if _, err := os.Stat(d.path("broker", "broker.hcl")); err == nil && wasModel != "" && wasModel != d.model {
		fmt.Fprintf(d.err, "note: %s was written for the model at %s, which is now at %s\n", d.path("broker", "broker.hcl"), wasModel, d.model)
	}
	return nil
}

// addressed refuses what is no address of this machine before anything listens.
func addressed(flag, value string) error {
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		if host = strings.Trim(value, "[]"); host == "" || strings.ContainsAny(host, " /") {
			host = "127.0.0.1"
		}
		return protocol.Errorf(protocol.CodeInvalidArgument, "--%s %q has no port: write it as HOST:PORT, such as --%s %s", flag, value, flag, net.JoinHostPort(host, devPorts[flag]))
	}
	if _, err := net.LookupPort("tcp", port); err != nil || port == "" {
		return protocol.Errorf(protocol.CodeInvalidArgument, "--%s %q has no usable port: one is a number up to 65535, and 0 is a free one, such as --%s %s", flag, value, flag, net.JoinHostPort(host, devPorts[flag]))
	}
	if _, err := net.LookupHost(host); host != "" && err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "--%s %q has no usable host (%w): give an address of this machine, as ip -brief address lists them, such as --%s %s", flag, value, err, flag, net.JoinHostPort("127.0.0.1", port))
	}
	return nil
}

// devPorts are the usual ones.
var devPorts = map[string]string{"public": "7400", "runner": "7401", "broker": "7402", "model": "7403"}

// settle tries an address, and gives it a port where it has none.
func settle(flag string, value *string, udp bool) error {
	l, err := net.Listen("tcp", *value)
	if err != nil {
		return taken(flag, *value, err)
	}
	defer l.Close()
	*value = l.Addr().String()
	if !udp {
		return nil
	}
	p, err := net.ListenPacket("udp", *value)
	if err != nil {
		return taken(flag, *value, err)
	}
	return p.Close()
}

// orNoEdge adds to a taken address that this machine's own runner dials it: another
// one is no way out while it runs.
func (d *dev) orNoEdge(flag, address string, err error) error {
	if flag != "runner" || d.noEdge || d.enrolment().Server != address || !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition, "%w; the runner of this machine dials %s, so with another one it needs --no-edge too", err, address)
}

func taken(flag, address string, err error) error {
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "--%s %s cannot be used: this machine has no such address; ip -brief address lists those that it has", flag, address)
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "--%s %s cannot be used: %w; choose another", flag, address, err)
	}
	host, port, _ := net.SplitHostPort(address)
	return protocol.Errorf(protocol.CodeFailedPrecondition,
		"--%s %s cannot be used: %w; another program has its port, perhaps another bivouac dev: `ss -lntup 'sport = :%s'` says which. End that one, or choose another port of the same address, at every start: --%s %s",
		flag, address, syscall.EADDRINUSE, port, flag, otherPort(host))
}

// otherPort of an address is one that is free now, for TCP and UDP.
func otherPort(host string) string {
	for range 5 {
		free := net.JoinHostPort(host, "0")
		if settle("", &free, true) == nil {
			return free
		}
	}
	return net.JoinHostPort(host, "PORT")
}
