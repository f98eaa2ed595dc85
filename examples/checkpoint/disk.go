package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
)

// disk is where a node keeps its part. Every node has its own directory, which is not read when that node is dead. A
// write into a neighbour's directory stands for a transfer to the neighbour.
type disk struct{ dir, node string }

// part is a range of cells at the beginning of a step.
type part struct {
	Step    int      `json:"step"`
	Members []string `json:"members"` // the members that shared the ring then
	From    int      `json:"from"`    // first cell
	Cells   []uint64 `json:"-"`
}

// path returns the path of node of's file on a node's disk, for the given run.
func (d disk) path(on, kind, of, run string, step int) string {
	return filepath.Join(d.dir, on, kind+"-"+of+"-"+run+"-"+strconv.Itoa(step))
}

// write creates the file atomically: it is complete whenever it is visible under its name.
func write(path string, p part) error {
	head, err := json.Marshal(p)
	if err != nil {
		return err
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(len(head)))
	b = append(b, head...)
	for _, c := range p.Cells {
		b = binary.BigEndian.AppendUint64(b, c)
	}
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func read(path string) (part, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return part{}, err
	}
	if len(b) < 8 || crc32.ChecksumIEEE(b[:len(b)-4]) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return part{}, fmt.Errorf("%s: damaged", path)
	}
	var p part
	head := int(binary.BigEndian.Uint32(b))
	if b = b[4 : len(b)-4]; head > len(b) {
		return part{}, fmt.Errorf("%s: damaged", path)
	}
	if err := json.Unmarshal(b[:head], &p); err != nil {
		return part{}, fmt.Errorf("%s: %w", path, err)
	}
	for b = b[head:]; len(b) >= 8; b = b[8:] {
		p.Cells = append(p.Cells, binary.BigEndian.Uint64(b))
	}
	return p, nil
}
