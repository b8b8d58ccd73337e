package brokerlink

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"bivouac/edge/protocol"
)

// statementsFile holds the root's words over the signing keys of the last hour.
// They are public: the keys themselves are never written.
const statementsFile = "signing-statements.json"

// statement is the root's word over one signing key, and its end.
type statement struct {
	JWS      string    `json:"jws"`
	NotAfter time.Time `json:"not_after"`
}

// inForce leaves ended statements out.
func inForce(all []statement, now time.Time) []statement {
	var out []statement
	for _, s := range all {
		if now.Before(s.NotAfter) {
			out = append(out, s)
		}
	}
	return out
}

// loadStatements reads what earlier runs of this server published.
func loadStatements(dir string) ([]statement, error) {
	path := filepath.Join(dir, statementsFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the statements over signing keys cannot be read: %w", err)
	}
	var all []statement
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "%s is not readable: remove it; work in flight under earlier keys may fail: %w", path, err)
	}
	return all, nil
}

func saveStatements(dir string, all []statement) error {
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, statementsFile), text, 0o644)
}
