package half

import (
	"fmt"
	"hash/crc32"
	"reflect"
	"slices"
	"strings"
	"unsafe"
)

// seal holds checksums of all memory that is reachable from a half's machine: structs, arrays, slices, strings and maps,
// with the pointers and lengths that lead to them. Guard takes the checksums when a step has ended and compares them
// before the next begins. Meanwhile nothing may write to that memory, so any difference is a fault of the memory.
//
// A check compares a block before it follows the block's pointers, so it never follows a damaged one. Only pointers
// in a map are followed unseen; a bad one there ends the process.
//
// Left out are memory with locks of its own (see ownLock), and what only such memory leads to. A seal is for one
// goroutine at a time.
type seal struct {
	root   unsafe.Pointer
	typ    reflect.Type
	layout map[reflect.Type]*layout
	sums   []uint32 // of the blocks, in the order of the walk
	// checked counts the blocks that the current walk has compared; -1: it takes the sums instead.
	checked int
	bad     string      // the first damaged block; empty: none
	seen    blocks      // blocks of the current walk
	found   func(place) // tests collect the places that the walk sums; nil: no test
}

// blocks is the set of the blocks that a walk has been to. A block is memory at an address, as one type: a struct begins
// with its first field. The set is a hash table with linear probing, of a power of two: a map would cost more than the
// rest of the walk.
type blocks struct {
	slots []slot
	walk  uint32 // number of the walk
	n     int
}

type slot struct {
	at   uintptr // Go does not move memory
	of   *layout
	walk uint32
}

func (b *blocks) clear() {
	if b.n = 0; b.slots == nil {
		b.slots = make([]slot, 256)
	}
	if b.walk++; b.walk == 0 { // after 2^32 walks: a slot of that long ago is none of this one
		clear(b.slots)
		b.walk = 1
	}
}

// add adds a block, and reports whether it was there.
func (b *blocks) add(at uintptr, l *layout) bool {
	mask := uintptr(len(b.slots) - 1)
	for i := (at>>3 ^ at>>11 ^ uintptr(unsafe.Pointer(l))>>4) & mask; ; i = (i + 1) & mask {
		switch s := &b.slots[i]; {
		case s.walk != b.walk:
			*s = slot{at, l, b.walk}
			if b.n++; 2*b.n > len(b.slots) {
				b.grow()
			}
			return false
		case s.at == at && s.of == l:
			return true
		}
	}
}

func (b *blocks) grow() {
	old := b.slots
	b.slots, b.n = make([]slot, 2*len(old)), 0
	for _, s := range old {
		if s.walk == b.walk {
			b.add(s.at, s.of)
		}
	}
}

// place is memory that a walk sums.
type place struct {
	name string
	mem  []byte
}

// layout describes a type's memory: the ranges that count, and the references in it.
type layout struct {
	name   string // of the type
	text   string // for a string in it
	list   string // for a slice of it
	size   uintptr
	ranges []memRange
	refs   []ref
}

type memRange struct{ from, to uintptr }

// ref is a word that leads to further memory.
type ref struct {
	at   uintptr
	kind reflect.Kind // Pointer, Slice, String, Map, Interface
	elem *layout      // of Pointer and Slice; of Map: the map's own
	typ  reflect.Type // of Map and Interface
	m    *mapLayout   // of Map
}

// mapLayout describes the entries of a map, with memory for the one that a walk looks at.
type mapLayout struct {
	key, value     reflect.Value
	keyAs, valueAs *layout
	iter           reflect.MapIter
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumBytes adds bytes to a checksum.
func sumBytes(sum uint32, mem []byte) uint32 {
	noteRead(mem)
	return crc32.Update(sum, castagnoli, mem)
}

// newSeal returns a seal for the memory behind a pointer. It is not taken yet.
func newSeal(root any) *seal {
	v := reflect.ValueOf(root)
	return &seal{root: v.UnsafePointer(), typ: v.Type().Elem(), layout: map[reflect.Type]*layout{}}
}

// take records the memory.
func (s *seal) take() {
	s.sums, s.checked, s.bad = s.sums[:0], -1, ""
	s.walk()
}

// check compares the memory with its record, and names the first damaged block; empty: there is none.
func (s *seal) check() string {
	s.checked, s.bad = 0, ""
	s.walk()
	if s.bad == "" && s.checked != len(s.sums) {
		return fmt.Sprintf("%d blocks of memory instead of %d", s.checked, len(s.sums))
	}
	return s.bad
}

func (s *seal) walk() {
	s.seen.clear()
	s.follow(s.root, s.layoutOf(s.typ))
}

// follow sums a block and those to which it leads.
func (s *seal) follow(p unsafe.Pointer, l *layout) {
	if p == nil || s.bad != "" || s.seen.add(uintptr(p), l) {
		return
	}
	if s.sum(l.name, l.sumOf(p, s.found)) {
		s.refs(p, l)
	}
}

// sum takes a sum, or compares it. It reports whether to go on.
func (s *seal) sum(name string, sum uint32) bool {
	if s.checked < 0 {
		s.sums = append(s.sums, sum)
		return true
	}
	if s.checked >= len(s.sums) || s.sums[s.checked] != sum {
		s.bad = name
		return false
	}
	s.checked++
	return true
}

// sumOf returns the checksum of a block, without what its references lead to.
func (l *layout) sumOf(p unsafe.Pointer, found func(place)) uint32 {
	var sum uint32
	for _, r := range l.ranges {
		mem := unsafe.Slice((*byte)(unsafe.Add(p, r.from)), r.to-r.from)
		if found != nil {
			found(place{l.name, mem})
		}
		sum = sumBytes(sum, mem)
	}
	return sum
}

// refs follows the references of a block that is as it was.
func (s *seal) refs(p unsafe.Pointer, l *layout) {
	for i := range l.refs {
		if s.bad != "" {
			return
		}
		r := &l.refs[i]
		at := unsafe.Add(p, r.at)
		switch r.kind {
		case reflect.Pointer:
			s.follow(*(*unsafe.Pointer)(at), r.elem)
		case reflect.String:
			if text := *(*string)(at); text != "" {
				mem := unsafe.Slice(unsafe.StringData(text), len(text))
				s.sum(l.text, sumBytes(0, mem))
			}
		case reflect.Slice:
			s.slice(*(*[]struct{})(at), r.elem)
		case reflect.Map:
			if *(*unsafe.Pointer)(at) != nil {
				s.sum(r.elem.name, s.mapSum(at, r, mapDepth))
			}
		case reflect.Interface:
			s.dynamic(at, r.typ)
		default:
		}
	}
}

// slice sums the elements of a slice, which stands for one of any type, as one block.
func (s *seal) slice(v []struct{}, elem *layout) {
	p := unsafe.Pointer(unsafe.SliceData(v))
	if len(v) == 0 || elem.size == 0 || s.seen.add(uintptr(p), elem) {
		return
	}
	if elem.whole() {
		mem := unsafe.Slice((*byte)(p), uintptr(len(v))*elem.size)
		if s.found != nil {
			s.found(place{elem.list, mem})
		}
		if !s.sum(elem.list, sumBytes(0, mem)) {
			return
		}
	}
	for i := range len(v) {
		at := unsafe.Add(p, uintptr(i)*elem.size)
		if !elem.whole() && !s.sum(elem.list, elem.sumOf(at, s.found)) {
			return
		}
		if len(elem.refs) == 0 && elem.whole() {
			return
		}
		s.refs(at, elem)
	}
}

// whole reports whether all bytes of a type count.
func (l *layout) whole() bool { return len(l.ranges) == 1 && l.ranges[0] == memRange{0, l.size} }

// dynamic follows the value of an interface, which is a pointer or points to a value that nothing changes.
func (s *seal) dynamic(at unsafe.Pointer, t reflect.Type) {
	v := reflect.NewAt(t, at).Elem()
	if v.IsNil() {
		return
	}
	of := v.Elem().Type()
	data := *(*unsafe.Pointer)(unsafe.Add(at, unsafe.Sizeof(uintptr(0))))
	switch {
	case of.Kind() == reflect.Pointer && !ownLock(of.Elem()):
		s.follow(data, s.layoutOf(of.Elem()))
	case pointerShaped(of), ownLock(of):
	default:
		s.follow(data, s.layoutOf(of))
	}
}

// pointerShaped reports whether an interface holds a value of this type itself, and not a pointer to it.
func pointerShaped(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return true
	case reflect.Struct:
		return t.NumField() == 1 && pointerShaped(t.Field(0).Type)
	case reflect.Array:
		return t.Len() == 1 && pointerShaped(t.Elem())
	default:
		return false
	}
}

// mapDepth is the number of pointers that a walk follows from an entry of a map.
const mapDepth = 2

// mapSum returns a checksum of a map's entries, in any order. Its pointers are followed without comparing them first,
// because the order in which they come is random.
func (s *seal) mapSum(at unsafe.Pointer, r *ref, depth int) (sum uint32) {
	v := reflect.NewAt(r.typ, at).Elem()
	if v.Len() == 0 {
		return 0
	}
	m := r.m
	if depth < mapDepth { // a map in a map: the outer walk uses the memory of its own type, which may be the same
		m = s.mapLayoutOf(r.typ)
	}
	m.iter.Reset(v)
	for m.iter.Next() {
		m.key.SetIterKey(&m.iter)
		m.value.SetIterValue(&m.iter)
		one := s.deep(m.key.Addr().UnsafePointer(), m.keyAs, depth)
		one = one*31 + s.deep(m.value.Addr().UnsafePointer(), m.valueAs, depth)
		sum += one ^ one>>15
	}
	m.iter.Reset(reflect.Value{})
	m.key.SetZero()
	m.value.SetZero()
	return sum
}

// deep returns the checksum of a value and of what its references lead to, up to depth pointers away.
func (s *seal) deep(p unsafe.Pointer, l *layout, depth int) uint32 {
	sum := l.sumOf(p, nil)
	for i := range l.refs {
		r := &l.refs[i]
		at := unsafe.Add(p, r.at)
		var more uint32
		switch r.kind {
		case reflect.Pointer:
			if to := *(*unsafe.Pointer)(at); to != nil && depth > 0 {
				more = s.deep(to, r.elem, depth-1)
			}
		case reflect.String:
			text := *(*string)(at)
			more = sumBytes(0, unsafe.Slice(unsafe.StringData(text), len(text)))
		case reflect.Slice:
			v := *(*[]struct{})(at)
			for j := range len(v) {
				more = more*31 + s.deep(unsafe.Add(unsafe.Pointer(unsafe.SliceData(v)), uintptr(j)*r.elem.size), r.elem, depth)
			}
		case reflect.Map:
			if depth > 0 && *(*unsafe.Pointer)(at) != nil {
				more = s.mapSum(at, r, depth-1)
			}
		default: // an interface: its two words are in the sum
		}
		sum = sum*31 + more
	}
	return sum
}

// layoutOf returns the layout of a type. Layouts refer to each other, as types do.
func (s *seal) layoutOf(t reflect.Type) *layout {
	if l := s.layout[t]; l != nil {
		return l
	}
	l := &layout{name: t.String(), text: "a string of " + t.String(), list: "[]" + t.String(), size: t.Size()}
	s.layout[t] = l
	s.lay(l, t, 0)
	return l
}

// lay adds a type at an offset to a layout.
func (s *seal) lay(l *layout, t reflect.Type, at uintptr) {
	if t.Size() == 0 {
		return
	}
	r := ref{at: at, kind: t.Kind(), typ: t}
	switch t.Kind() {
	case reflect.Struct:
		if ownLock(t) {
			return
		}
		end := at
		for i := range t.NumField() {
			f := t.Field(i)
			skip := ownLock(f.Type) || f.Name == "sizeCache" && isMessage(t) // which encoding a message sets
			if !skip {
				l.count(end, at+f.Offset) // padding does not change either
				s.lay(l, f.Type, at+f.Offset)
			}
			if end = at + f.Offset + f.Type.Size(); skip && i == t.NumField()-1 {
				return
			}
		}
		l.count(end, at+t.Size())
		return
	case reflect.Array:
		for i := range t.Len() {
			s.lay(l, t.Elem(), at+uintptr(i)*t.Elem().Size())
		}
		return
	case reflect.Pointer:
		if !ownLock(t.Elem()) {
			r.elem = s.layoutOf(t.Elem())
			l.refs = append(l.refs, r)
		}
	case reflect.Slice:
		if !ownLock(t.Elem()) {
			r.elem = s.layoutOf(t.Elem())
			l.refs = append(l.refs, r)
		}
	case reflect.Map:
		r.m, r.elem = s.mapLayoutOf(t), s.layoutOf(t)
		l.refs = append(l.refs, r)
	case reflect.String, reflect.Interface:
		l.refs = append(l.refs, r)
	default:
	}
	l.count(at, at+t.Size())
}

func (s *seal) mapLayoutOf(t reflect.Type) *mapLayout {
	return &mapLayout{key: reflect.New(t.Key()).Elem(), value: reflect.New(t.Elem()).Elem(), keyAs: s.layoutOf(t.Key()),
		valueAs: s.layoutOf(t.Elem())}
}

// count adds a range to the ones that count.
func (l *layout) count(from, to uintptr) {
	if from == to {
		return
	}
	if n := len(l.ranges); n > 0 && l.ranges[n-1].to == from {
		l.ranges[n-1].to = to
		return
	}
	l.ranges = append(l.ranges, memRange{from, to})
}

// ownLock reports whether memory of a type may change without the half's mutex, or belongs to the runtime or a
// library that may change it.
func ownLock(t reflect.Type) bool {
	p := t.PkgPath()
	if p == "time" {
		return t.Name() != "Time" && t.Kind() == reflect.Struct
	}
	library := slices.Contains([]string{"sync", "sync/atomic", "log/slog", "reflect", "runtime", "net", "os", "context"}, p) ||
		strings.HasPrefix(p, "internal/") || strings.HasPrefix(p, "crypto/") || strings.HasPrefix(p, "google.golang.org/")
	return library && t.Kind() == reflect.Struct
}

// isMessage reports whether a type is a message of the protocol.
func isMessage(t reflect.Type) bool { return strings.HasSuffix(t.PkgPath(), "/api/lofamo/v1") }
