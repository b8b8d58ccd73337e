package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

// Copy is what Restore fills an empty store from.
type Copy struct {
	// Epoch of the store when it was copied.
	Epoch uint32
	// Migrations of its schema then.
	Migrations []Migration
	// Rows gives every table's rows, parents first, to put.
	Rows func(put func(table string, columns []string, row []any) error) error
}

// Restore fills an empty store and raises everything that an earlier life of it
// gave out: epoch and fences, generations, the sequences of feed and mailboxes. So
// a copy that is older than what was done since can repeat none of it: what it
// knows as open is settled by Rewound before any server runs on it. INV-16.
//
// The new epoch is the second of now, counted since 2000: higher than that of every
// earlier life, also of those that the copy knows nothing of. It comes from
// OwnSecond, so that no other restore has it.
func Restore(ctx context.Context, c Config, from Copy, now time.Time) (*Store, error) {
	known, err := migrations()
	if err != nil {
		return nil, err
	}
	var applied []migration
	for _, m := range from.Migrations {
		applied = append(applied, migration{version: m.Version, name: m.Name, checksum: m.Checksum})
	}
	if err := compatible(known, applied); err != nil {
		return nil, err
	}
	return open(ctx, c, func(s *Store) error {
		return s.engine.migrating(ctx, func(on plainSQL) error {
			if err := s.vacant(ctx, on); err != nil {
				return err
			}
			for i, m := range known {
				if i == len(applied) {
					if err := s.fill(ctx, on, from, now); err != nil {
						return err
					}
				}
				if err := s.apply(ctx, on, m); err != nil {
					return fmt.Errorf("store: migration %04d_%s: %w", m.version, m.name, err)
				}
			}
			if len(known) == len(applied) {
				return s.fill(ctx, on, from, now)
			}
			return nil
		})
	})
}

// Raise does the same to a store that was brought back by other means: a copied
// disk, or PostgreSQL's own backup.
func Raise(ctx context.Context, c Config) (*Store, error) {
	return open(ctx, c, func(s *Store) error {
		return s.engine.migrating(ctx, func(on plainSQL) error {
			epoch, err := readEpoch(ctx, on)
			if err != nil {
				return err
			}
			now, err := OwnSecond(ctx, epoch)
			if err != nil {
				return err
			}
			return raise(ctx, on, epoch, now)
		})
	})
}

// ErrFilled is a database that a restore must not write over.
var ErrFilled = errors.New("the database holds a store already")

// vacant makes sure that nothing is overwritten.
func (s *Store) vacant(ctx context.Context, on plainSQL) error {
	if s.dialect.migrationLock != "" {
		if _, err := on.ExecContext(ctx, s.dialect.migrationLock); err != nil {
			return err
		}
	}
	if _, err := on.ExecContext(ctx, createMigrations); err != nil {
		return err
	}
	applied, err := appliedMigrations(ctx, on)
	if err == nil && len(applied) > 0 {
		err = protocol.Errorf(protocol.CodeFailedPrecondition, "%w: restore into an empty one, and keep the old one until you have looked at the new", ErrFilled)
	}
	return err
}

// copiedMeta are the names of meta that are not of one file or one process.
var copiedMeta = []string{"store_epoch", "floor_seq"}

func (s *Store) fill(ctx context.Context, on plainSQL, from Copy, now time.Time) error {
	if _, err := on.ExecContext(ctx, `DELETE FROM meta`); err != nil { // the copy has its own
		return err
	}
	var batch inserts
	if err := from.Rows(func(table string, columns []string, row []any) error {
		if !slices.Contains(Tables, table) {
			return protocol.Errorf(protocol.CodeDataLoss, "the copy holds a table %q that this build does not know", table)
		}
		if table == "meta" && !slices.Contains(copiedMeta, fmt.Sprint(row[slices.Index(columns, "name")])) {
			return nil
		}
		return batch.add(ctx, on, table, columns, row)
	}); err != nil {
		return err
	}
	if err := batch.flush(ctx, on); err != nil {
		return err
	}
	return raise(ctx, on, from.Epoch, now)
}

// inserts collects rows of one table into statements of many rows.
type inserts struct {
	table   string
	columns []string
	values  []any
	rows    int
}

// maxValues of one statement; SQLite takes 32766, PostgreSQL 65535.
const maxValues = 30000

func (b *inserts) add(ctx context.Context, on plainSQL, table string, columns []string, row []any) error {
	if b.table != table || len(b.values)+len(row) > maxValues || b.rows == 200 {
		if err := b.flush(ctx, on); err != nil {
			return err
		}
		b.table, b.columns = table, columns
	}
	b.values, b.rows = append(b.values, row...), b.rows+1
	return nil
}

func (b *inserts) flush(ctx context.Context, on plainSQL) error {
	if b.rows == 0 {
		return nil
	}
	var text strings.Builder
	fmt.Fprintf(&text, "INSERT INTO %s (%s) VALUES ", b.table, strings.Join(b.columns, ", "))
	for r := range b.rows {
		if r > 0 {
			text.WriteString(", ")
		}
		text.WriteString("(")
		for c := range b.columns {
			if c > 0 {
				text.WriteString(", ")
			}
			fmt.Fprintf(&text, "$%d", r*len(b.columns)+c+1)
		}
		text.WriteString(")")
	}
	_, err := on.ExecContext(ctx, text.String(), b.values...)
	if err != nil {
		err = fmt.Errorf("store: fill table %s: %w", b.table, err)
	}
	b.values, b.rows = b.values[:0], 0
	return err
}

// year2000 is where epochs of restored stores are counted from.
var year2000 = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// half is the weight of a fence's upper half.
const half = int64(1) << 32

// raise lifts everything above what earlier lives gave out.
func raise(ctx context.Context, on plainSQL, last uint32, now time.Time) error {
	epoch := max(int64(last)+1, int64(now.Sub(year2000)/time.Second))
	if epoch > 1<<31-1 {
		return protocol.Errorf(protocol.CodeDataLoss, "no epoch is left after %d: check the machine's clock", last)
	}
	at := now.UnixMicro()
	do := func(text string, args ...any) error {
		_, err := on.ExecContext(ctx, text, args...)
		return err
	}
	floor, floorAll := int64(policy.FloorInstance), int64(policy.FloorStore)
	return errors.Join(
		do(`UPDATE meta SET value = $1 WHERE name = 'store_epoch'`, epoch),
		do(`INSERT INTO meta (name, value) VALUES ('rewound', $1) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, epoch),
		do(`UPDATE meta SET value = CASE WHEN value < $1 THEN $1 ELSE value END WHERE name = 'floor_seq'`, epoch*half),
		// Fences of whatever is still open. INV-3.
		do(`UPDATE turns SET owner_fence = owner_fence % $1 + $2 WHERE owner_fence > 0 AND owner_fence < $2 AND state IN `+activeStates, half, epoch*half),
		do(`UPDATE actions SET fence = fence % $1 + $2 WHERE fence > 0 AND fence < $2 AND state IN `+openActions, half, epoch*half),
		do(`UPDATE attempts SET fence = fence % $1 + $2 WHERE fence > 0 AND fence < $2 AND state IN `+heldStates, half, epoch*half),
		// Capabilities: of every generation, and of every fence, before. INV-16.
		do(`UPDATE instances SET generation = CASE WHEN generation < $1 THEN $1 ELSE generation + 1 END`, epoch),
		do(`DELETE FROM floors WHERE (kind = $1 AND id IN (SELECT id FROM instances)) OR kind = $2`, floor, floorAll),
		do(`INSERT INTO floors (seq, kind, id, minimum, at, expires_at)
			SELECT CAST($1 AS BIGINT) + ROW_NUMBER() OVER (ORDER BY id), CAST($2 AS BIGINT), id, generation, CAST($3 AS BIGINT), 0 FROM instances`, epoch*half+1, floor, at),
		do(`INSERT INTO floors (seq, kind, id, minimum, at, expires_at) VALUES ($1, $2, $3, $4, $5, 0)`, epoch*half+1, floorAll, policy.StoreFloor, epoch*half, at),
		do(`UPDATE meta SET value = (SELECT MAX(seq) FROM floors) WHERE name = 'floor_seq'`),
		// Slices may have been drawn on since: they count as spent. INV-19.
		do(`UPDATE slices SET drawn = ceiling, closed_at = $1 WHERE closed_at = 0`, at),
		// Codes may have been used since.
		do(`UPDATE join_codes SET expires_at = $1 WHERE used_at = 0`, at),
		do(`UPDATE runners SET mailbox_seq = $1, acked_seq = $1 WHERE mailbox_seq < $1`, epoch*half),
		do(`DELETE FROM mailbox`), do(`DELETE FROM connections`), do(`DELETE FROM replicas`), do(`DELETE FROM leads`), do(`DELETE FROM signing_statements`),
	)
}

var (
	rewound   = define(`SELECT value FROM meta WHERE name = 'rewound'`)
	settled   = define(`DELETE FROM meta WHERE name = 'rewound'`)
	openTurns = define(`SELECT ` + turnColumns + fromTurns + ` WHERE t.state IN ` + activeStates + ` OR t.state = 'QUEUED' ORDER BY t.id LIMIT $1`)
)

// Rewound reports a store that was restored and whose open turns are not settled
// yet, and returns some of them.
func (tx *Tx) Rewound(limit int) (yes bool, turns []protocol.TurnID, err error) {
	if err := tx.internal("settling a restored store"); err != nil {
		return false, nil, err
	}
	if _, err := first(tx, number, rewound, nil); err == errNoRow {
		return false, nil, nil
	} else if err != nil {
		return false, nil, err
	}
	all, err := list(tx, scanTurn, openTurns, []any{limited(limit)})
	for _, t := range all {
		turns = append(turns, t.ID)
	}
	return true, turns, err
}

// Settled says that nothing of the restored store is open any more.
func (tx *Tx) Settled() error {
	if err := tx.internal("settling a restored store"); err != nil {
		return err
	}
	_, err := tx.exec(settled)
	return err
}
