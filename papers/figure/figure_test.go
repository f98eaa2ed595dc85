package figure

import (
	"bytes"
	"image/png"
	"math"
	"strings"
	"testing"
)

func plots() []Figure {
	points := []Point{{X: 0, Y: 1}, {X: 1, Y: 3, Below: 0.5, Above: 1}, {X: 2, Y: 2}}
	p := Plot{Title: "title", X: "x, hops", Y: "y", BarWidth: 1}
	for _, look := range []Look{Marks, Line, Dots, Dashed, Paper, Bars} {
		p.Series = append(p.Series, Series{Name: "look", Look: look, Points: points})
	}
	logarithmic := Plot{LogX: true, LogY: true, XMin: 1, XMax: 100, YMin: 1, YMax: 10, Legend: BottomRight,
		Series: []Series{{Name: "a", Look: Line, Points: []Point{{X: 1, Y: 1}, {X: 100, Y: 10}}}}}
	m := Mesh{
		Title: "mesh", Columns: 3, Rows: 2, Wraps: true, Key: true,
		Faulty: []Link{{At{0, 0}, At{1, 0}}}, Shaded: []At{{2, 1}},
		Nodes: []Node{{At{0, 0}, "S", Dark}, {At{2, 1}, "", Dead}, {At{1, 1}, "3", Light}},
		Ways:  []Way{{Route, []At{{0, 0}, {0, 1}, {1, 1}}}, {Deroute, []At{{1, 1}, {1, 0}}}},
		Notes: []Note{{Link{At{0, 1}, At{1, 1}}, "1/2"}},
	}
	return []Figure{p, logarithmic, m, Panels{m, m}}
}

func TestDrawsTheSameEachTime(t *testing.T) {
	for i, f := range plots() {
		var a, b, pixels bytes.Buffer
		for _, w := range []*bytes.Buffer{&a, &b} {
			if err := SVG(w, f); err != nil {
				t.Fatalf("figure %d: %v", i, err)
			}
		}
		if !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Errorf("figure %d differs from itself", i)
		}
		if err := PNG(&pixels, f); err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(&pixels)
		if err != nil {
			t.Fatal(err)
		}
		w, h := f.size()
		if got, want := float64(img.Bounds().Dx())/float64(img.Bounds().Dy()), w/h; math.Abs(got-want) > 0.02*want {
			t.Errorf("figure %d: %v, want %v by %v", i, img.Bounds(), w, h)
		}
	}
}

func TestRefusesWhatCannotBeDrawn(t *testing.T) {
	for _, tc := range []struct {
		f    Figure
		want string
	}{
		{Plot{Series: []Series{{Name: "empty", Look: Line}}}, `series "empty" has no points`},
		{Plot{Series: []Series{{Name: "s", Look: Line, Points: []Point{{X: 1, Y: math.Inf(1)}}}}}, "cannot be drawn"},
		{Plot{Series: []Series{{Name: "s", Look: Bars, Points: []Point{{X: 1, Y: 1}}}}}, "bars of width 0"},
		{Mesh{Columns: 2, Rows: 2, Nodes: []Node{{At: At{2, 0}}}}, "is outside of 2 by 2"},
		{Mesh{Columns: 2, Rows: 2, Faulty: []Link{{At{0, 0}, At{1, 1}}}}, "no link between"},
		{Mesh{Columns: 2, Rows: 2, Ways: []Way{{Route, []At{{0, 0}, {0, 2}}}}}, "no link between"},
		{Panels{Mesh{Columns: 1, Rows: 1, Shaded: nil, Notes: []Note{{Link: Link{At{0, 0}, At{0, 1}}}}}}, "no link between"},
	} {
		if err := SVG(new(bytes.Buffer), tc.f); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want an error with %q", tc.f, err, tc.want)
		}
	}
}

func TestWriteCSV(t *testing.T) {
	got := string(csv(Plot{X: "x, hops", Y: "y", Series: []Series{{Name: `the "best"`,
		Points: []Point{{X: 1, Y: 2.5, Below: 0.1, Above: 0.2}}}}}.rows()))
	want := "series,\"x, hops\",y,below,above\n\"the \"\"best\"\"\",1,2.5,0.1,0.2\n"
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
