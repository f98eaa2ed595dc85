package order

import (
	"fmt"
	"maps"
	"slices"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Registry holds the handlers of one end of the channel, one for each kind. The code that assembles that end registers
// them; afterwards the registry does not change and may be read from any goroutine.
type Registry[H any] struct{ by map[string]H }

// Register adds the handler of a kind. It panics if the name is invalid or already registered: both are programming
// errors.
func (r *Registry[H]) Register(kind string, h H) {
	if !servicenet.ValidOrderKind(kind) {
		panic(fmt.Sprintf("order: register kind %q: want 1 to %d bytes of a-z and '-'", kind, servicenet.MaxOrderKind))
	}
	if _, ok := r.by[kind]; ok {
		panic(fmt.Sprintf("order: register kind %q: it is registered already", kind))
	}
	if r.by == nil {
		r.by = make(map[string]H)
	}
	r.by[kind] = h
}

// Of returns the handler of a kind; false if this end does not know the kind.
func (r *Registry[H]) Of(kind string) (H, bool) {
	h, ok := r.by[kind]
	return h, ok
}

// Kinds returns the names of all kinds in alphabetical order.
func (r *Registry[H]) Kinds() []string { return slices.Sorted(maps.Keys(r.by)) }
