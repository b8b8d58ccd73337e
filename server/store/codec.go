package store

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"
)

// encode turns a Go value into what both engines take: text, 64-bit integers
// and bytes. Instants are microseconds, zero for the zero time; booleans are 0
// or 1. Text that PostgreSQL cannot hold is mended the same way on both.
func encode(v any) any {
	switch v := v.(type) {
	case string:
		return cleanText(v)
	case int64:
		return v
	case int:
		return int64(v)
	case bool:
		if v {
			return int64(1)
		}
		return int64(0)
	case []byte:
		if v == nil {
			return []byte{}
		}
		return v
	case time.Time:
		return micros(v)
	case time.Duration:
		return v.Microseconds()
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.String:
		return cleanText(r.String())
	case reflect.Int, reflect.Int32, reflect.Int64:
		return r.Int()
	}
	panic(fmt.Sprintf("store: no column holds a %T", v))
}

// cleanText replaces NUL and broken UTF-8: PostgreSQL refuses both.
func cleanText(s string) string {
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// column reads one column into a Go value.
type column func(src any) error

// Scan is sql.Scanner's.
func (c column) Scan(src any) error { return c(src) }

func at(t *time.Time) column {
	return integer(func(v int64) { *t = instant(v) })
}

func span(d *time.Duration) column {
	return integer(func(v int64) { *d = time.Duration(v) * time.Microsecond })
}

func flag(b *bool) column {
	return integer(func(v int64) { *b = v != 0 })
}

func integer(set func(int64)) column {
	return func(src any) error {
		v, ok := src.(int64)
		if !ok {
			return fmt.Errorf("store: column holds %T, not an integer", src)
		}
		set(v)
		return nil
	}
}

// blob copies: an engine's bytes live no longer than the row. Empty reads as nil.
func blob(b *[]byte) column {
	return func(src any) error {
		v, ok := src.([]byte)
		if !ok && src != nil {
			return fmt.Errorf("store: column holds %T, not bytes", src)
		}
		*b = nil
		if len(v) > 0 {
			*b = append([]byte(nil), v...)
		}
		return nil
	}
}

// document reads a JSON column.
func document(v any) column {
	return func(src any) error {
		s, ok := src.(string)
		if !ok {
			return fmt.Errorf("store: column holds %T, not text", src)
		}
		return json.Unmarshal([]byte(s), v)
	}
}

// toJSON is for small structures of known types, which always encode.
func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("store: %T does not encode: %v", v, err))
	}
	return string(b)
}
