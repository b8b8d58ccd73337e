package journal

import (
	"encoding/binary"
	"hash/crc32"
)

// A frame is one record on disk, little endian:
//
//	length  uint32  of the payload
//	crc     uint32  CRC-32C of everything after this field, and of length
//	seq     uint64
//	durable uint64  highest sequence that was synced when this was written
//	payload [length]byte
//
// durable tells a torn tail from damage: a bad frame before a good one is damage
// only when the good one knew it to be on the disk. Pages that were never synced
// may reach the disk in any order.
const headerBytes = 4 + 4 + 8 + 8

// MaxRecord is the largest payload.
const MaxRecord = 8 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type frame struct {
	seq     int64
	durable int64
	payload []byte
}

func (f frame) size() int64 { return headerBytes + int64(len(f.payload)) }

func (f frame) encode() []byte {
	b := make([]byte, f.size())
	binary.LittleEndian.PutUint32(b[0:], uint32(len(f.payload)))
	binary.LittleEndian.PutUint64(b[8:], uint64(f.seq))
	binary.LittleEndian.PutUint64(b[16:], uint64(f.durable))
	copy(b[headerBytes:], f.payload)
	binary.LittleEndian.PutUint32(b[4:], checksum(b))
	return b
}

func checksum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:4], castagnoli), castagnoli, b[8:])
}

// decode reads the frame at the head of b; ok is false when there is none.
func decode(b []byte) (f frame, ok bool) {
	if len(b) < headerBytes {
		return frame{}, false
	}
	n := int64(binary.LittleEndian.Uint32(b[0:]))
	if n > MaxRecord || headerBytes+n > int64(len(b)) {
		return frame{}, false
	}
	b = b[:headerBytes+n]
	if binary.LittleEndian.Uint32(b[4:]) != checksum(b) {
		return frame{}, false
	}
	f = frame{
		seq:     int64(binary.LittleEndian.Uint64(b[8:])),
		durable: int64(binary.LittleEndian.Uint64(b[16:])),
		payload: b[headerBytes:],
	}
	return f, f.seq > 0 && f.durable >= 0 && f.durable < f.seq
}

// scan reads frames in order from b, the first of which must be want. It returns
// how many bytes are good, the next sequence, and whether a record that was
// known to be durable is damaged.
func scan(b []byte, want int64, each func(frame)) (good int64, next int64, damaged bool) {
	for int64(len(b)) > good {
		f, ok := decode(b[good:])
		if !ok || f.seq != want {
			return good, want, knewDurable(b[good:], want)
		}
		if each != nil {
			each(f)
		}
		good += f.size()
		want++
	}
	return good, want, false
}

// knewDurable looks for a later good frame that says record seq was synced.
func knewDurable(b []byte, seq int64) bool {
	for at := 1; at+headerBytes <= len(b); at++ {
		// Cheap tests first: the checksum of every offset would be quadratic.
		later := int64(binary.LittleEndian.Uint64(b[at+8:]))
		durable := int64(binary.LittleEndian.Uint64(b[at+16:]))
		if later <= seq || durable < seq || durable >= later {
			continue
		}
		if _, ok := decode(b[at:]); ok {
			return true
		}
	}
	return false
}
