package state

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
)

// Allocation is of an attempt whose supervisor another scheduler starts, as the task of
// a job. It is written by the daemon, and never changed: another job is another
// directory.
type Allocation struct {
	Job string `json:"job"`
	// PIDNamespace of the daemon, in which the supervisor has to be seen.
	PIDNamespace string `json:"pid_namespace,omitempty"`
}

// Mark says who took an attempt's directory, for good: one supervisor, or the daemon,
// which then wants none any more. There is never a second one in a directory (INV-14).
type Mark struct {
	BootNonce string `json:"boot_nonce,omitempty"`
	// Alloc is Nomad's name of the allocation.
	Alloc string `json:"alloc,omitempty"`
	Process
	At time.Time `json:"at"`
	// Withdrawn: the daemon took it.
	Withdrawn bool `json:"withdrawn,omitempty"`
}

// Ways in which a directory is not to be had.
var (
	// ErrNotYet: the daemon has not made it, or not finished.
	ErrNotYet = errors.New("no attempt waits for this allocation")
	// ErrOther: the attempt waits for another allocation, or for none.
	ErrOther = errors.New("the attempt is not this allocation's")
	// ErrTaken: there is a mark.
	ErrTaken = errors.New("the attempt was taken before")
)

const (
	allocationFile = "allocation"
	markFile       = "taken"
	offerFile      = "offer"
)

// Expect makes the directory of an attempt for the supervisor of a job, with the offer
// that named it. It is there for a supervisor when everything in it is on the disk.
func (a Attempt) Expect(job string, offer []byte) error {
	if err := os.MkdirAll(filepath.Join(a.path, "blobs"), 0o700); err != nil {
		return protocol.Errorf(protocol.CodeUnavailable, "the directory of attempt %s cannot be made: %w", a.ID, err)
	}
	b, err := json.Marshal(Allocation{Job: job, PIDNamespace: PIDNamespace()})
	if err != nil {
		return err
	}
	if err := durable.Replace(filepath.Join(a.path, offerFile), offer, 0o600); err != nil {
		return err
	}
	return durable.Replace(filepath.Join(a.path, allocationFile), b, 0o600)
}

// Exists reports a directory, whatever is in it.
func (a Attempt) Exists() bool {
	_, err := os.Lstat(a.path)
	return err == nil
}

// Allocation that the directory was made for; ok is false for one whose supervisor this
// machine starts itself.
func (a Attempt) Allocation() (out Allocation, ok bool) {
	b, err := os.ReadFile(filepath.Join(a.path, allocationFile))
	return out, err == nil && json.Unmarshal(b, &out) == nil && out.Job != ""
}

// Offer that named the allocation.
func (a Attempt) Offer() ([]byte, error) { return os.ReadFile(filepath.Join(a.path, offerFile)) }

// Mark of the directory; ok is false when nobody has taken it.
func (a Attempt) Mark() (m Mark, ok bool, err error) {
	b, err := os.ReadFile(filepath.Join(a.path, markFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Mark{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		return Mark{}, true, protocol.Errorf(protocol.CodeDataLoss, "the mark of attempt %s is damaged: %w", a.ID, err)
	}
	return m, true, nil
}

// Take makes this process the one supervisor of the directory, if it was made for job
// and nobody has it: with ErrTaken the mark of who has. The directory that was looked at
// is the one that is taken, whatever its path names meanwhile.
func (a Attempt) Take(job, alloc string) (Mark, error) {
	root, err := os.OpenRoot(a.path)
	if errors.Is(err, fs.ErrNotExist) {
		return Mark{}, ErrNotYet
	}
	if err != nil {
		return Mark{}, err
	}
	defer root.Close()
	if err := expects(root, job); err != nil {
		return Mark{}, err
	}
	self := Self()
	if !self.Alive() { // nobody could tell whether it still is, or end it
		return Mark{}, protocol.Errorf(protocol.CodeFailedPrecondition, "this system does not show this task its own process: mount /proc where tasks run")
	}
	var b [16]byte
	rand.Read(b[:])
	m := Mark{BootNonce: hex.EncodeToString(b[:]), Alloc: alloc, Process: self, At: time.Now()}
	if err := mark(root, m); errors.Is(err, fs.ErrExist) {
		before, _, err := a.Mark()
		return before, errors.Join(ErrTaken, err)
	} else if err != nil {
		return Mark{}, err
	}
	// Who takes a directory away removes what it was made for first, and the mark later.
	return m, expects(root, job)
}

// expects reports whether a directory waits for a job.
func expects(root *os.Root, job string) error {
	b, err := root.ReadFile(allocationFile)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := root.Lstat("boot_nonce"); err == nil {
			return ErrOther // this machine starts its supervisor itself
		}
		return ErrNotYet
	}
	var want Allocation
	if err == nil {
		err = json.Unmarshal(b, &want)
	}
	switch {
	case err != nil:
		return err
	case want.Job != job:
		return ErrOther
	case want.PIDNamespace != PIDNamespace():
		return protocol.Errorf(protocol.CodeFailedPrecondition, "this task does not see the processes of bivouac-edge (%s, not %s), which could not end it: run it with Nomad's raw_exec driver, as bivouac-server writes the job", PIDNamespace(), want.PIDNamespace)
	}
	return nil
}

// Withdraw takes the directory for nobody: from then on no supervisor can. It returns
// ErrTaken when one was faster.
func (a Attempt) Withdraw() error {
	root, err := os.OpenRoot(a.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	if err := mark(root, Mark{Withdrawn: true, At: time.Now()}); errors.Is(err, fs.ErrExist) {
		if m, _, err := a.Mark(); err == nil && m.Withdrawn {
			return nil
		}
		return ErrTaken
	} else if err != nil {
		return err
	}
	return nil
}

// mark writes the mark whole, once, and makes it durable: a machine that loses its power
// finds it again.
func mark(root *os.Root, m Mark) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	var unique [8]byte
	rand.Read(unique[:])
	temp := markFile + "." + hex.EncodeToString(unique[:])
	f, err := root.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer root.Remove(temp)
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := root.Link(temp, markFile); err != nil {
		return err
	}
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
