package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"syscall"

	"bivouac/edge/protocol"
)

// A file knows which one it is and whether it was closed in order. A copy that was
// made while a server ran lacks what was in the log beside it, and may hold pages of
// different instants; a server that went on from it would repeat what was done
// since. Both are seen at the next start, for nothing: a file that stayed where it
// is needs no look at its pages.
var (
	fileMarks = define(`SELECT COALESCE(MAX(CASE WHEN name = 'file_inode' THEN value END), 0), COALESCE(MAX(CASE WHEN name = 'file_closed' THEN value END), 1)
		FROM meta WHERE name IN ('file_inode', 'file_closed')`)
	putMark = define(`INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value`)
)

func (e *sqliteEngine) adopt(ctx context.Context, raised bool) error {
	st, err := os.Stat(e.path)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	inode := int64(st.Sys().(*syscall.Stat_t).Ino)
	var was, closed int64
	err = e.store.View(ctx, AsLoop("open"), func(tx *Tx) error {
		_, err := first(tx, func(r scanner) (bool, error) { return true, r.Scan(&was, &closed) }, fileMarks, nil)
		return err
	})
	if err != nil {
		return err
	}
	if was != 0 && was != inode {
		if err := e.sound(ctx); err != nil {
			return err
		}
		if closed == 0 && !raised {
			return protocol.Errorf(protocol.CodeFailedPrecondition,
				"%s is a copy that was made while a server ran on it: what was done since is unknown here. Bring the file itself back, or give up what was under way with bivouac-server restore --in-place", e.path)
		}
		e.store.log.Warn("the database file was moved or copied here", "path", e.path)
	}
	e.adopted = true
	return e.mark(ctx, inode, 0)
}

// sound reads every page: a copy may hold some of another instant.
func (e *sqliteEngine) sound(ctx context.Context) error {
	for _, check := range []struct{ text, fine string }{{`PRAGMA quick_check(1)`, "ok"}, {`PRAGMA foreign_key_check`, ""}} {
		found, err := e.firstOf(ctx, check.text)
		if err != nil || found.String != check.fine {
			return &protocol.Error{Code: protocol.CodeDataLoss, Err: err,
				Message: fmt.Sprintf("%s is a damaged copy (%s %v): restore a backup with bivouac-server restore", e.path, found.String, err)}
		}
	}
	return nil
}

// firstOf is the first column of the first row, as text.
func (e *sqliteEngine) firstOf(ctx context.Context, text string) (found sql.NullString, err error) {
	rows, err := e.readers.QueryContext(ctx, text)
	if err != nil {
		return found, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil || !rows.Next() {
		return found, errors.Join(err, rows.Err())
	}
	row := make([]any, len(columns))
	row[0] = &found
	for i := range row[1:] {
		row[i+1] = new(any)
	}
	return found, rows.Scan(row...)
}

// part notes that the file is closed in order. A disk that is full is no reason to
// stay open.
func (e *sqliteEngine) part() {
	if !e.adopted {
		return
	}
	if err := e.mark(context.Background(), 0, 1); err != nil {
		e.store.log.Warn("the database file does not know that it was closed", "error", err)
	}
}

func (e *sqliteEngine) mark(ctx context.Context, inode, closed int64) error {
	return e.store.Update(ctx, AsLoop("open"), func(tx *Tx) error {
		if inode != 0 {
			if _, err := tx.exec(putMark, "file_inode", inode); err != nil {
				return err
			}
		}
		_, err := tx.exec(putMark, "file_closed", closed)
		return err
	})
}
