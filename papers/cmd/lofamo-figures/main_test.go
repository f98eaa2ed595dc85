package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestShort makes all figures in their short form, twice: SVG that is well-formed, and the same bytes for the same
// seed.
func TestShort(t *testing.T) {
	made := func() (map[string][]byte, string) {
		dir := t.TempDir()
		var out, progress bytes.Buffer
		if err := run([]string{"-short", "-out", dir}, &out, &progress); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string][]byte{}
		for _, f := range files {
			b, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			all[f.Name()] = b
		}
		return all, out.String()
	}
	first, tables := made()
	again, tablesAgain := made()
	if tables != tablesAgain || !strings.Contains(tables, "| 64 | 21.8, 3.5 |") {
		t.Errorf("tables differ for the same seed, or lack a row of the paper:\n%s\n%s", tables, tablesAgain)
	}
	svgs := 0
	for name, b := range first {
		if !bytes.Equal(b, again[name]) {
			t.Errorf("%s differs for the same seed", name)
		}
		if !strings.HasSuffix(name, ".svg") {
			continue
		}
		svgs++
		for d := xml.NewDecoder(bytes.NewReader(b)); ; {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
		}
	}
	if svgs < len(studies())-1 || len(again) != len(first) {
		t.Errorf("%d pictures of %d studies; %d and %d files", svgs, len(studies()), len(first), len(again))
	}
}

func TestRefuses(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"", "a directory"},
		{"-out . -trials 1", "trials 1 (2 to 1000000)"},
		{"-out . -only table4", `study "table4": want some of table3`},
		{"-out . more", `arguments ["more"] (none)`},
		{"-colour", "not defined"},
	} {
		err := run(strings.Fields(tc.args), io.Discard, io.Discard)
		if !errors.As(err, new(usageError)) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want a usage error with %q", tc.args, err, tc.want)
		}
	}
	if err := run([]string{"-short", "-only", "figure5", "-out", filepath.Join(t.TempDir(), "none")}, io.Discard,
		io.Discard); err == nil || errors.As(err, new(usageError)) {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// TestDrawingsAreCurrent: the drawings in docs/papers/figures that are made within a second are those that the program makes. The short
// form of the study of obstacles has the same drawings.
func TestDrawingsAreCurrent(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{{"-only", "figure5,figure6,figure3"}, {"-only", "obstacles", "-short"}} {
		if err := run(append(args, "-out", dir), io.Discard, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"figure3", "figure5", "figure6", "figure11", "figure14", "figure16", "figure17"} {
		made, err := os.ReadFile(filepath.Join(dir, name+".svg"))
		if err != nil {
			t.Fatal(err)
		}
		shown, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "papers", "figures", name+".svg"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(made, shown) {
			t.Errorf("docs/papers/figures/%s.svg is not current: run make figures", name)
		}
	}
}
