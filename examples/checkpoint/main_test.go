package main

import (
	"bytes"
	"context"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPartsMakeWholeForAnyDivision checks that the parts together are the whole, however the ring is divided.
func TestPartsMakeWholeForAnyDivision(t *testing.T) {
	const cells, steps = 97, 50
	want := serial(cells, steps)
	for _, n := range []int{1, 2, 3, 8, 97} {
		parts := make([][]uint64, n)
		for i := range parts {
			from, to := share(cells, i, n)
			for c := from; c < to; c++ {
				parts[i] = append(parts[i], begin(c))
			}
		}
		for range steps {
			was := slices.Clone(parts)
			for i, p := range was {
				left, right := was[(i+n-1)%n], was[(i+1)%n]
				parts[i] = advance(p, left[len(left)-1], right[0])
			}
		}
		if got := slices.Concat(parts...); !slices.Equal(got, want) {
			t.Errorf("%d parts give %s, want %s", n, digest(got), digest(want))
		}
	}
}

func TestDamagedCheckpointPartIsRefused(t *testing.T) {
	d := disk{dir: t.TempDir(), node: "a"}
	path := d.path("b", "copy", "a", "run", 30)
	want := part{Step: 30, Members: []string{"a", "b"}, From: 4, Cells: []uint64{7, 1 << 63, 0}}
	if err := write(path, want); err != nil {
		t.Fatal(err)
	}
	got, err := read(path)
	if err != nil || got.Step != want.Step || got.From != want.From || !slices.Equal(got.Members, want.Members) ||
		!slices.Equal(got.Cells, want.Cells) {
		t.Errorf("%+v, %v", got, err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 0x10
		if err := os.WriteFile(path, bad, 0o644); err != nil {
			t.Fatal(err)
		}
		if p, err := read(path); err == nil {
			t.Errorf("byte %d flipped: %+v", i, p)
		}
	}
	if left, err := filepath.Glob(filepath.Join(d.dir, "b", "new-*")); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestRestoreReadsCopyOfMissingMember: one of four members of a checkpoint is gone. The other three take their shares,
// and read its part from its neighbour's copy. When the neighbour is gone too, the checkpoint is lost, and restore
// reports it.
func TestRestoreReadsCopyOfMissingMember(t *testing.T) {
	const cells = 50
	dir, four := t.TempDir(), []string{"a", "b", "c", "d"}
	ring := serial(cells, 20)
	for i, m := range four {
		from, to := share(cells, i, 4)
		p := part{Step: 20, Members: four, From: from, Cells: ring[from:to]}
		for _, path := range []string{disk{dir: dir}.path(m, "part", m, "old", 20), disk{dir: dir}.path(four[(i+1)%4], "copy", m, "old", 20)} {
			if err := write(path, p); err != nil {
				t.Fatal(err)
			}
		}
	}
	restore := func(node string, left ...string) (part, error) {
		var o options
		o.node, o.dir, o.cells, o.job = node, dir, cells, "test"
		r := &run{options: o, disk: disk{dir: dir, node: node}, log: log.New(io.Discard, "", 0)}
		r.join(left)
		err := r.restore(mark{20, "old"})
		return r.part, err
	}
	if err := os.RemoveAll(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	var got []uint64
	for _, node := range []string{"a", "c", "d"} {
		p, err := restore(node, "a", "c", "d")
		if err != nil || p.Step != 20 || p.From != len(got) {
			t.Fatalf("%s: step %d from %d, %v", node, p.Step, p.From, err)
		}
		got = append(got, p.Cells...)
	}
	if !slices.Equal(got, ring) {
		t.Error("the shares are not the whole")
	}
	if _, err := restore("a", "a", "d"); err == nil || !strings.Contains(err.Error(), "b and c, which had the copy, are both gone") {
		t.Errorf("b and c gone: %v", err)
	}
}

func TestInvalidArgumentsPrintUsage(t *testing.T) {
	for _, args := range [][]string{
		{}, {"-cells", "0", "-serial"}, {"-steps", "0", "-serial"}, {"-serial", "more"},
		{"-job", "x", "-dir", "y", "-node", "a", "-members", "b,c"}, {"-job", "x", "-node", "a", "-members", "a"}, {"-wrong"},
	} {
		var out, errs bytes.Buffer
		if code := execute(context.Background(), args, &out, &errs); code != 2 || errs.Len() == 0 || out.Len() > 0 {
			t.Errorf("%q: %d, %q", args, code, &errs)
		}
	}
	var out bytes.Buffer
	if code := execute(context.Background(), []string{"-serial", "-cells", "10", "-steps", "3"}, &out, &out); code != 0 ||
		!strings.HasPrefix(out.String(), "result ") {
		t.Errorf("%d, %q", code, &out)
	}
}
