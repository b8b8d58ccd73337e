package store

import (
	"context"
	"database/sql"
	"errors"
)

// sqliteConn is one connection with its prepared statements. Its statements run
// without the caller's context: cancelling one would interrupt the connection,
// and with it a transaction that others share.
type sqliteConn struct {
	dialect  *dialect
	db       *sql.DB
	conn     *sql.Conn
	prepared []*sql.Stmt // by statement
	controls map[string]*sql.Stmt
}

// open connects unless it is open already.
func (c *sqliteConn) open(ctx context.Context) error {
	if c.conn != nil {
		return nil
	}
	conn, err := c.db.Conn(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	c.conn = conn
	c.prepared = make([]*sql.Stmt, len(statements))
	c.controls = make(map[string]*sql.Stmt)
	return nil
}

// discard closes the connection; the next open makes a new one.
func (c *sqliteConn) discard() error {
	if c.conn == nil {
		return nil
	}
	var errs []error
	for _, st := range c.prepared {
		if st != nil {
			errs = append(errs, st.Close())
		}
	}
	for _, st := range c.controls {
		errs = append(errs, st.Close())
	}
	errs = append(errs, c.conn.Close())
	c.conn, c.prepared, c.controls = nil, nil, nil
	return errors.Join(errs...)
}

// control runs BEGIN, SAVEPOINT and their like.
func (c *sqliteConn) control(text string) error {
	st := c.controls[text]
	if st == nil {
		var err error
		if st, err = c.conn.PrepareContext(context.Background(), text); err != nil {
			return err
		}
		c.controls[text] = st
	}
	_, err := st.ExecContext(context.Background())
	return err
}

func (c *sqliteConn) stmt(st *statement) (*sql.Stmt, error) {
	if p := c.prepared[st.n]; p != nil {
		return p, nil
	}
	p, err := c.conn.PrepareContext(context.Background(), c.dialect.sql(st))
	if err != nil {
		return nil, err
	}
	c.prepared[st.n] = p
	return p, nil
}

func (c *sqliteConn) exec(_ context.Context, st *statement, args []any) (sql.Result, error) {
	p, err := c.stmt(st)
	if err != nil {
		return nil, err
	}
	return p.ExecContext(context.Background(), args...)
}

func (c *sqliteConn) query(_ context.Context, st *statement, args []any) (*sql.Rows, error) {
	p, err := c.stmt(st)
	if err != nil {
		return nil, err
	}
	return p.QueryContext(context.Background(), args...)
}
