package fault

// Words returns a number for the content of a digest: everything except the sequence, the ages, the uptime, and the
// platform, which is constant in a boot epoch. Two digests of one half with the same content have the same number. A
// digest with readings always has new content. The number is the same in every process, so that replicas can tell one
// another about a repeated digest instead of forwarding it.
//
// It is the 64-bit FNV-1a hash of the fields, each of fixed width or preceded by its length. Two digests of the same
// length that differ in one byte never have the same number (each step of FNV-1a is a bijection); others collide with a
// probability of one in 2^64. With 200,000 halves that each have new content twice a second, that is once in a million
// years. It does not protect against a half that constructs two digests with one number: such a half lies about itself
// only, which it could also do in one digest.
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
		h.bytes(byte(o.Component), byte(o.State), byte(o.Kind)|flag(o.Ended)<<7) // earlier versions have the same number without Ended
		h.text(o.Detail)
	}
	if len(r.Readings) > 0 || r.Restart.Half != 0 || r.Stop != 0 { // readings exist only for moving values: no two are alike
		h.number(uint64(r.ID.Seq))
	}
	return uint64(h)
}

// fnv is a running FNV-1a hash; hash/fnv would need byte slices.
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
