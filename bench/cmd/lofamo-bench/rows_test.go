package main

import (
	"context"
	"io"
	"strings"
	"testing"
)

// TestRowsThatNoSectionHasAreRefused: a table without rows would look as if it had been measured.
func TestRowsThatNoSectionHasAreRefused(t *testing.T) {
	for _, args := range [][]string{{"-rows", "25x20x20"}, {"-only", "delivery", "-rows", "25x20x20"}, {"-only", "kill-node", "-rows", "x"}} {
		if _, err := parse(args); err == nil || !strings.Contains(err.Error(), "want -only with a section on load") {
			t.Errorf("%q: %v: want an error that names the sections on load", args, err)
		}
	}
	o, err := parse([]string{"-only", "digests", "-rows", "10000"})
	if err != nil {
		t.Fatal(err)
	}
	o.out.w = io.Discard
	err = deliverySections(context.Background(), o)
	if err == nil || !strings.Contains(err.Error(), `"10000"`) || !strings.Contains(err.Error(), "25x20x20") {
		t.Errorf("rows 10000 of the section digests: %v: want an error that names the rows", err)
	}
}

func TestRowsAreSelectedByPartsOfTheirNames(t *testing.T) {
	r := &rows{part: "2"}
	if r.want("1x1x1") || !r.want("2x1x1") || r.check() != nil {
		t.Errorf("%+v: want the second row alone", r)
	}
	if all := (&rows{}); !all.want("1x1x1") || all.check() != nil {
		t.Errorf("%+v: want every row", all)
	}
}
