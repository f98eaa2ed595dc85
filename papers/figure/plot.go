package figure

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Look is the style of a series.
type Look uint8

// The looks.
const (
	// Marks are points with a thin line through them.
	Marks Look = iota + 1
	// Line is a line without points, for many points.
	Line
	// Dots are points alone.
	Dots
	// Dashed is a broken line in grey: a formula, a bound, an extrapolation.
	Dashed
	// Paper is the paper's own numbers: hollow points in black, broken line.
	Paper
	// Bars are columns of a histogram, Plot.BarWidth wide.
	Bars
)

// Point is a point of a series. Below and Above are the lengths of its error bar downwards and upwards; both 0 for
// none.
type Point struct{ X, Y, Below, Above float64 }

// Series is the data drawn in one colour.
type Series struct {
	Name   string // in the legend; empty for none
	Look   Look
	Points []Point
	// Shift moves the drawing, and not the numbers, to the right, in units of X: error bars of several series do not
	// lie on one another then.
	Shift float64
}

// Corner is where the legend stands.
type Corner uint8

// The corners.
const (
	TopLeft Corner = iota + 1
	TopRight
	BottomRight
	BottomLeft
	// Right is the right edge, below the top by a fifth.
	Right
)

// Plot is a diagram with two axes. Fields that are not set are chosen from the data.
type Plot struct {
	Title string
	X, Y  string // the axes' labels, with the unit
	// Series are drawn in this order, the last on top.
	Series []Series
	Legend Corner // TopLeft when left out
	// XMin to YMax bound the axes where the two differ.
	XMin, XMax, YMin, YMax float64
	LogX, LogY             bool
	BarWidth               float64 // of Bars, in units of X
	Width, Height          float64 // centimetres; 16 by 10 when left out
}

func (p Plot) size() (width, height float64) {
	if p.Width == 0 || p.Height == 0 {
		return 16, 10
	}
	return p.Width, p.Height
}

func (p Plot) draw(c draw.Canvas) error {
	d := p.axes(c.Max.Y - c.Min.Y)
	colour := 0
	for _, s := range p.Series {
		if len(s.Points) == 0 {
			return fmt.Errorf("series %q has no points", s.Name)
		}
		tone := black
		switch s.Look {
		case Dashed:
			tone = grey
		case Paper:
		default:
			tone = palette(colour)
			colour++
		}
		if err := p.add(d, s, tone); err != nil {
			return fmt.Errorf("series %q: %w", s.Name, err)
		}
	}
	if p.XMin != p.XMax {
		d.X.Min, d.X.Max = p.XMin, p.XMax
	}
	if !p.LogY {
		d.Y.Max += (d.Y.Max - d.Y.Min) / 20
	}
	if p.YMin != p.YMax {
		d.Y.Min, d.Y.Max = p.YMin, p.YMax
	}
	margin := vg.Length(10)
	d.Draw(draw.Crop(c, margin/2, -margin, margin/2, -margin/2))
	return nil
}

// ticks are at multiples of 1, 2 or 5 times a power of ten, with a number at each: four to nine of these.
type ticks struct{}

// Ticks makes it gonum's.
func (ticks) Ticks(low, high float64) []plot.Tick {
	raw := (high - low) / 8
	if !(raw > 0) || math.IsInf(raw, 0) {
		return plot.DefaultTicks{}.Ticks(low, high)
	}
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	decimals := max(0, int(-math.Floor(math.Log10(raw))))
	for _, m := range []float64{1, 2, 5, 10} {
		if step*m >= raw {
			if m == 10 && decimals > 0 {
				decimals--
			}
			step *= m
			break
		}
	}
	var out []plot.Tick
	for k := math.Ceil(low/step - 1e-9); k*step <= high+step*1e-9; k++ {
		out = append(out, plot.Tick{Value: k * step, Label: strconv.FormatFloat(k*step+0, 'f', decimals, 64)})
	}
	return out
}

// axes makes the diagram without its content.
func (p Plot) axes(height vg.Length) *plot.Plot {
	d := plot.New()
	d.Title.Text = p.Title
	d.Title.TextStyle.Font = sans(12)
	d.Title.Padding = 8
	for _, a := range []*plot.Axis{&d.X, &d.Y} {
		a.Label.TextStyle.Font = sans(11)
		a.Label.Padding = 4
		a.Tick.Label.Font = sans(10)
		a.Tick.Marker = ticks{}
	}
	d.X.Label.Text, d.Y.Label.Text = p.X, p.Y
	if p.LogX {
		d.X.Scale, d.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	if p.LogY {
		d.Y.Scale, d.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.NRGBA{R: 230, G: 230, B: 230, A: 255}, color.NRGBA{R: 230, G: 230, B: 230, A: 255}
	d.Add(grid)
	d.Legend.TextStyle.Font = sans(10)
	d.Legend.Padding = 3
	d.Legend.ThumbnailWidth = vg.Points(26)
	d.Legend.Top = p.Legend != BottomLeft && p.Legend != BottomRight
	d.Legend.Left = p.Legend != TopRight && p.Legend != BottomRight && p.Legend != Right
	inset := vg.Points(10)
	d.Legend.XOffs, d.Legend.YOffs = -inset, -inset
	if d.Legend.Left {
		d.Legend.XOffs = inset
	}
	switch {
	case p.Legend == Right:
		d.Legend.YOffs = -height / 5
	case !d.Legend.Top:
		d.Legend.YOffs = inset
	}
	return d
}

// values adapts the series to gonum's plotters, with its error bars.
type values []Point

func (v values) Len() int { return len(v) }

func (v values) XY(i int) (x, y float64) { return v[i].X, v[i].Y }

func (v values) YError(i int) (below, above float64) { return v[i].Below, v[i].Above }

func (v values) hasErrors() bool {
	for _, p := range v {
		if p.Below != 0 || p.Above != 0 {
			return true
		}
	}
	return false
}

func (p Plot) add(d *plot.Plot, s Series, tone color.NRGBA) error {
	v := values(slices.Clone(s.Points))
	for i := range v {
		v[i].X += s.Shift
	}
	for _, at := range v {
		if math.IsNaN(at.X+at.Y) || math.IsInf(at.X+at.Y, 0) {
			return fmt.Errorf("point %+v cannot be drawn", at)
		}
	}
	if s.Look == Bars {
		return p.addBars(d, s, tone)
	}
	line, dots, err := plotter.NewLinePoints(v)
	if err != nil {
		return err
	}
	line.Color, line.Width = tone, vg.Points(1.2)
	dots.Color, dots.Shape, dots.Radius = tone, draw.CircleGlyph{}, vg.Points(2.6)
	var thumbs []plot.Thumbnailer
	if v.hasErrors() {
		bars, err := plotter.NewYErrorBars(v)
		if err != nil {
			return err
		}
		bars.Color, bars.Width, bars.CapWidth = tone, vg.Points(0.8), vg.Points(5)
		d.Add(bars)
	}
	switch s.Look {
	case Line:
		d.Add(line)
		thumbs = append(thumbs, line)
	case Dots:
		d.Add(dots)
		thumbs = append(thumbs, dots)
	case Dashed:
		line.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
		d.Add(line)
		thumbs = append(thumbs, line)
	case Paper:
		line.Dashes, line.Width = []vg.Length{vg.Points(2), vg.Points(3)}, vg.Points(0.8)
		dots.Shape, dots.Radius = draw.SquareGlyph{}, vg.Points(3.4)
		d.Add(line, dots)
		thumbs = append(thumbs, line, dots)
	default:
		line.Width = vg.Points(0.9)
		d.Add(line, dots)
		thumbs = append(thumbs, line, dots)
	}
	if s.Name != "" {
		d.Legend.Add(s.Name, thumbs...)
	}
	return nil
}

func (p Plot) addBars(d *plot.Plot, s Series, tone color.NRGBA) error {
	if p.BarWidth <= 0 {
		return fmt.Errorf("bars of width %v: want one above 0", p.BarWidth)
	}
	tone.A = 150
	var first *plotter.Polygon
	for _, at := range s.Points {
		if at.Y == 0 {
			continue
		}
		l, r := at.X-p.BarWidth/2, at.X+p.BarWidth/2
		bar, err := plotter.NewPolygon(plotter.XYs{{X: l, Y: 0}, {X: l, Y: at.Y}, {X: r, Y: at.Y}, {X: r, Y: 0}})
		if err != nil {
			return err
		}
		bar.Color, bar.Width = tone, 0
		d.Add(bar)
		if first == nil {
			first = bar
		}
	}
	if s.Name != "" && first != nil {
		d.Legend.Add(s.Name, first)
	}
	return nil
}

func (p Plot) rows() [][]string {
	rows := [][]string{{"series", p.X, p.Y, "below", "above"}}
	n := func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
	for _, s := range p.Series {
		for _, at := range s.Points {
			rows = append(rows, []string{s.Name, n(at.X), n(at.Y), n(at.Below), n(at.Above)})
		}
	}
	return rows
}
