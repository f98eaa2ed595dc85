package fault

// Words is a number for what a digest says: equal for two digests of one half whose words are the same,
// that is everything but the sequence, the ages, the uptime, and the platform, which is constant in a boot epoch. A digest with
// readings always says something new. It is the same in every process, so that replicas can tell one another that a digest has
// come again instead of passing it on.
//
// It is the 64-bit FNV-1a hash of the fields, each of fixed width or after its length. Two digests of the
// same length that differ in one byte never have the same (each step of FNV-1a is a bijection); others have it
// by chance once in 2^64. With 200,000 halves that each say something new twice a second, that is once in
// a million years. It is no defence against a half that seeks two digests of one number: such a half lies
// about itself only, which it could do in one digest as well.
func Words(r Report) uint64 {
	h := fnvOffset
	h.text(string(r.ID.Origin.Node))
	h.bytes(byte(r.ID.Origin.Half), flag(r.Digest), flag(r.Partial))
	h.number(uint64(r.ID.Epoch))
	h.number(uint64(r.Registers.DNPWatchdog)<<32 | uint64(r.Registers.HostWatchdog))
	h.number(uint64(r.Registers.RemoteFaultDescriptor))
	h.number(uint64(len(r.Observations)))
	for _, o := range r.Observations {
		h.text(string(o.Node))
		h.bytes(byte(o.Component), byte(o.State), byte(o.Kind))
		h.text(o.Detail)
	}
	if len(r.Readings) > 0 || r.Restart.Half != 0 { // readings are of what moves: no two are alike
		h.number(uint64(r.ID.Seq))
	}
	return uint64(h)
}

// fnv is a running FNV-1a hash; hash/fnv would want slices of bytes.
type fnv uint64

const (
	fnvOffset fnv = 14695981039346656037
	fnvPrime  fnv = 1099511628211
)

func (h *fnv) bytes(bs ...byte) {
	for _, b := range bs {
		*h = (*h ^ fnv(b)) * fnvPrime
	}
}

func (h *fnv) number(v uint64) {
	for i := range 8 {
		h.bytes(byte(v >> (8 * i)))
	}
}

func (h *fnv) text(s string) {
	h.number(uint64(len(s)))
	for i := range len(s) {
		h.bytes(s[i])
	}
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}
