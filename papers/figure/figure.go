// Package figure draws the figures of docs/papers: plots of series with error bars, histograms, and meshes with
// faults and the ways of messages. It draws its input and computes nothing; the same data always give the same bytes.
//
// A picture is written as SVG, for the documents, together with a CSV of the numbers in it; and as PNG for any
// viewer.
package figure

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Figure is a picture: a Plot, a Mesh or Panels.
type Figure interface {
	// size returns width and height in centimetres.
	size() (width, height float64)
	draw(draw.Canvas) error
	// rows returns the numbers that are drawn with a heading, or nothing where the drawing is all there is.
	rows() [][]string
}

// Write makes dir/name.svg, and dir/name.csv where there are numbers.
func Write(dir, name string, f Figure) error {
	var b bytes.Buffer
	if err := SVG(&b, f); err != nil {
		return fmt.Errorf("figure %s: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".svg"), b.Bytes(), 0o644); err != nil {
		return err
	}
	rows := f.rows()
	if len(rows) == 0 {
		return nil
	}
	return os.WriteFile(filepath.Join(dir, name+".csv"), csv(rows), 0o644)
}

func csv(rows [][]string) []byte {
	var b bytes.Buffer
	for _, r := range rows {
		for i, cell := range r {
			if i > 0 {
				b.WriteByte(',')
			}
			if bytes.ContainsAny([]byte(cell), ",\"\n") {
				cell = `"` + string(bytes.ReplaceAll([]byte(cell), []byte(`"`), []byte(`""`))) + `"`
			}
			b.WriteString(cell)
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// SVG writes the picture as a vector drawing.
func SVG(w io.Writer, f Figure) error {
	x, y := lengths(f)
	c := vgsvg.New(x, y)
	if err := paint(draw.New(c), f); err != nil {
		return err
	}
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return err
	}
	// Without Liberation, use letters of the same widths.
	_, err := w.Write(bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"),
		[]byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;")))
	return err
}

// PNG writes the picture as pixels, 144 an inch.
func PNG(w io.Writer, f Figure) error {
	x, y := lengths(f)
	c := vgimg.NewWith(vgimg.UseWH(x, y), vgimg.UseDPI(144))
	if err := paint(draw.New(c), f); err != nil {
		return err
	}
	_, err := vgimg.PngCanvas{Canvas: c}.WriteTo(w)
	return err
}

func lengths(f Figure) (width, height vg.Length) {
	x, y := f.size()
	return vg.Length(x) * vg.Centimeter, vg.Length(y) * vg.Centimeter
}

func paint(c draw.Canvas, f Figure) error {
	c.FillPolygon(color.White, []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
	return f.draw(c)
}

// Panels are pictures side by side.
type Panels []Figure

func (p Panels) size() (width, height float64) {
	for _, f := range p {
		x, y := f.size()
		width, height = width+x, max(height, y)
	}
	return width, height
}

func (p Panels) draw(c draw.Canvas) error {
	left := c.Min.X
	for _, f := range p {
		x, y := lengths(f)
		part := draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{Min: vg.Point{X: left, Y: c.Max.Y - y},
			Max: vg.Point{X: left + x, Y: c.Max.Y}}}
		if err := f.draw(part); err != nil {
			return err
		}
		left += x
	}
	return nil
}

func (p Panels) rows() [][]string {
	var out [][]string
	for _, f := range p {
		out = append(out, f.rows()...)
	}
	return out
}

// Colours that people with red-green blindness can distinguish (Okabe and Ito's), and that differ in a print without
// colours.
var (
	black  = color.NRGBA{A: 255}
	grey   = color.NRGBA{R: 140, G: 140, B: 140, A: 255}
	pale   = color.NRGBA{R: 205, G: 205, B: 205, A: 255}
	blue   = color.NRGBA{G: 114, B: 178, A: 255}
	orange = color.NRGBA{R: 213, G: 94, A: 255}
	green  = color.NRGBA{G: 158, B: 115, A: 255}
	purple = color.NRGBA{R: 204, G: 121, B: 167, A: 255}
	sky    = color.NRGBA{R: 86, G: 180, B: 233, A: 255}
	yellow = color.NRGBA{R: 230, G: 159, A: 255}
	red    = color.NRGBA{R: 190, G: 30, B: 45, A: 255}
)

func palette(i int) color.NRGBA {
	return []color.NRGBA{blue, orange, green, purple, sky, yellow}[i%6]
}

// style returns letters of that height in points.
func style(size float64) text.Style {
	return text.Style{Color: black, Font: sans(size), Handler: plot.DefaultTextHandler}
}

func sans(size float64) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Length(size)}
}
