package embedded

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
)

// A snapshot's file is etcd's database, whole pages of at least 512 bytes, and its SHA-256 behind it.
const pageBytes = 512

// The ways in which a snapshot's file is wrong.
var (
	ErrNoHash  = errors.New("no checksum at its end: it is no snapshot, or was cut off")
	ErrBadHash = errors.New("its checksum does not agree: it is damaged")
)

// SnapshotSum returns the checksum at the end of a snapshot file, after verifying it.
func SnapshotSum(path string) (sum []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, reason(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	st, err := f.Stat()
	if err != nil {
		return nil, reason(err)
	}
	n := st.Size() - sha256.Size
	if n <= 0 || n%pageBytes != 0 {
		return nil, fmt.Errorf("%d bytes: %w", st.Size(), ErrNoHash)
	}
	h := sha256.New()
	if _, err := io.CopyN(h, f, n); err != nil {
		return nil, reason(err)
	}
	want, err := io.ReadAll(f)
	if err != nil {
		return nil, reason(err)
	}
	if !bytes.Equal(h.Sum(nil), want) {
		return nil, ErrBadHash
	}
	return want, nil
}

func checkHash(path string) error {
	_, err := SnapshotSum(path)
	return err
}

// reason strips operation and path from a file error.
func reason(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
