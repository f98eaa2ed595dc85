package regfile

import (
	"slices"
	"testing"
)

func TestAreas(t *testing.T) {
	areas := Areas()
	slices.SortFunc(areas, func(a, b Area) int { return a.Offset - b.Offset })
	for i, a := range areas {
		if a.Offset < 0 || a.Offset+a.Size > Size || i > 0 && areas[i-1].Offset+areas[i-1].Size > a.Offset {
			t.Errorf("%+v is outside the file or overlaps another", a)
		}
	}
	if want := 5 + 2*(len(guardedRegisters)+numExtWords); len(areas) != want {
		t.Errorf("%d areas, want %d", len(areas), want)
	}
}
