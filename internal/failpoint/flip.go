//go:build lofamo_failpoint

package failpoint

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"unsafe"
)

// Flipped describes a flip.
type Flipped struct {
	Path string // from the root, in Go syntax
	Bit  int
	Of   int // number of places to choose from
	at   scalar
}

// Undo flips the bit back, in the process that flipped it.
func (f Flipped) Undo() { f.at.flip(f.Bit) }

// scalar is a place in live memory.
type scalar struct {
	path string
	at   unsafe.Pointer
	size uintptr
	ref  bool // part of a pointer, slice, text, map, interface or function
}

// Flip flips one bit of one place reachable from the roots, chosen by seed: a scalar, or with refs a pointer, a length
// or a capacity. It leaves out the bytes of texts, the insides of maps, and types with locks of their own. No other
// goroutine may use data reachable from the roots during the flip.
func Flip(roots map[string]any, seed uint64, refs bool) (Flipped, error) {
	s, bit, of, err := choose(roots, seed, refs)
	if err != nil {
		return Flipped{}, err
	}
	s.flip(bit)
	return Flipped{s.path, bit, of, s}, nil
}

func (s scalar) flip(bit int) { *(*byte)(unsafe.Add(s.at, bit/8)) ^= 1 << (bit % 8) }

// choose returns the place and the bit for a flip, and the number of places.
func choose(roots map[string]any, seed uint64, refs bool) (s scalar, bit, of int, err error) {
	w, found := places(roots, refs)
	if len(found) == 0 {
		return s, 0, 0, errors.New("flip: nothing lives here")
	}
	r := rand.New(rand.NewPCG(seed, seed))
	s = found[r.IntN(len(found))]
	return s, r.IntN(w.bits(s)), len(found), nil
}

// Each tries each flip that Flip may choose: it flips the bit, calls found, and undoes the flip. found must
// neither change the roots' data, nor follow its pointers unchecked, nor let the garbage collector run, which follows them.
func Each(roots map[string]any, refs bool, found func(Flipped)) {
	w, all := places(roots, refs)
	for _, s := range all {
		for bit := range w.bits(s) {
			f := Flipped{s.path, bit, len(all), s}
			s.flip(bit)
			found(f)
			f.Undo()
		}
	}
}

// places returns the places that are reachable from the roots: pointers and lengths if refs, otherwise values.
func places(roots map[string]any, refs bool) (*walker, []scalar) {
	w := &walker{seen: map[visit]bool{}}
	for _, name := range slices.Sorted(maps.Keys(roots)) {
		w.walk(name, reflect.ValueOf(roots[name]), 0)
	}
	return w, slices.DeleteFunc(w.found, func(s scalar) bool { return s.ref != refs })
}

// bits returns the number of bits of a place that a flip may hit: other bits of a bool would make it invalid.
func (w *walker) bits(s scalar) int {
	if !s.ref && w.isBool[s.at] {
		return 1
	}
	return int(s.size) * 8
}

type visit struct {
	at unsafe.Pointer
	t  reflect.Type
}

type walker struct {
	seen   map[visit]bool
	found  []scalar
	isBool map[unsafe.Pointer]bool
}

// Limits of a walk: the maximum depth, elements of a slice, and scalars.
const (
	maxDepth    = 24
	maxElements = 4096
	maxFound    = 1 << 20
)

// walk is long because it handles every kind of value.
func (w *walker) walk(path string, v reflect.Value, depth int) {
	if depth > maxDepth || len(w.found) >= maxFound || !v.IsValid() || left(v.Type()) {
		return
	}
	w.refs(path, v)
	switch v.Kind() {
	case reflect.Bool:
		if v.CanAddr() {
			if w.isBool == nil {
				w.isBool = map[unsafe.Pointer]bool{}
			}
			w.isBool[at(v)] = true
		}
		w.take(path, v)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32,
		reflect.Uint64, reflect.Float32, reflect.Float64:
		w.take(path, v)
	case reflect.Pointer:
		if v.IsNil() || w.seen[visit{v.UnsafePointer(), v.Type()}] {
			return
		}
		w.seen[visit{v.UnsafePointer(), v.Type()}] = true
		w.walk(path, v.Elem(), depth+1)
	case reflect.Interface:
		if !v.IsNil() {
			w.walk(path, v.Elem(), depth+1)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			w.walk(path+"."+v.Type().Field(i).Name, v.Field(i), depth+1)
		}
	case reflect.Array:
		for i := range v.Len() {
			w.walk(fmt.Sprintf("%s[%d]", path, i), v.Index(i), depth+1)
		}
	case reflect.Slice:
		if v.Len() == 0 || w.seen[visit{v.UnsafePointer(), v.Type()}] {
			return
		}
		w.seen[visit{v.UnsafePointer(), v.Type()}] = true
		for i := range min(v.Len(), maxElements) {
			w.walk(fmt.Sprintf("%s[%d]", path, i), v.Index(i), depth+1)
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); { // only values behind pointers are addressable
			w.walk(path+"[…]", it.Value(), depth+1)
		}
	default: // strings, functions, channels, unsafe pointers
	}
}

func (w *walker) take(path string, v reflect.Value) {
	if v.CanAddr() {
		w.found = append(w.found, scalar{path, at(v), v.Type().Size(), false})
	}
}

// refs takes the words of a reference.
func (w *walker) refs(path string, v reflect.Value) {
	if !v.CanAddr() {
		return
	}
	var words []string
	switch v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Func, reflect.Chan, reflect.UnsafePointer:
		words = []string{"pointer"}
	case reflect.Slice:
		words = []string{"pointer", "length", "capacity"}
	case reflect.String:
		words = []string{"pointer", "length"}
	case reflect.Interface:
		words = []string{"type", "pointer"}
	default:
	}
	for i, name := range words {
		const word = unsafe.Sizeof(uintptr(0))
		w.found = append(w.found, scalar{path + " (" + name + ")", unsafe.Add(at(v), uintptr(i)*word), word, true})
	}
}

func at(v reflect.Value) unsafe.Pointer { return unsafe.Pointer(v.UnsafeAddr()) }

// left reports whether a type is left out.
func left(t reflect.Type) bool {
	p := t.PkgPath()
	return p == "sync" || p == "sync/atomic" || p == "log/slog" || p == "time" && t.Name() == "Location" || p == "reflect" || p == "runtime" ||
		strings.HasPrefix(p, "internal/") || strings.HasPrefix(p, "crypto/") || strings.HasPrefix(p, "google.golang.org/") ||
		p == "net" || p == "os"
}
