package order

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// PlainNode is a node's side of a plain kind.
type PlainNode interface {
	// Validate returns an error that names the bad field, its value and the allowed values. It changes nothing; the
	// node refuses the order then.
	Validate(Content) error
	// Apply brings a content into force. The empty content means that the node has no order of this kind any more.
	// Apply may block, and may be called again with the same content, for example after each start of the node. The
	// node reports the error of Apply, and the leader sends the order again.
	Apply(Content) error
}

// Node is the machine of one half for all its plain kinds.
//
//	Order: validate, fence ──Output.Keep──► Kept ──Output.Apply──► Applied ──Output.Answer──► the leader
//
// It is for one goroutine.
type Node struct {
	self  fault.Origin
	epoch func() fault.Epoch
	kinds *Registry[PlainNode]
	held  map[string]*heldOrder
	lost  error     // why the stored orders are unreadable
	again time.Time // next report of lost orders; zero: none is lost
}

// lostAgain is the time between two reports of a lost order.
const lostAgain = 30 * time.Second

// heldOrder is the node's order of one kind.
type heldOrder struct {
	number  uint64
	content Content
	failed  string // why the content is not in force; empty: it is
	// The answer follows when the order is stored and applied.
	storing, applying bool
	lost              bool // the stored order is unreadable, and no order has come since
	// onDisk is the order on disk, while this one is not there; unstored: the disk has refused this one.
	onDisk   *heldOrder
	unstored bool
}

// stored returns the order that belongs on disk.
func (h *heldOrder) stored() *heldOrder {
	if h.unstored {
		return h.onDisk
	}
	return h
}

// NodeOutput is the work for the shell, in this order.
type NodeOutput struct {
	Keep   []byte // to be stored; Kept follows. nil: nothing
	Apply  []Application
	Answer []*lofamov1.OrderStatus // to be signed and sent to the leader
	Notes  []string                // for the log
	Lost   error                   // why the stored orders are unreadable; the node requests them from the leader
}

// Application is a content that the handler of its kind must bring into force; Applied follows.
type Application struct {
	Kind    string
	Number  uint64
	Content Content
}

// NewNode returns a machine with the orders that an earlier life has stored (NodeOutput.Keep). lost is the error with which
// the disk refused to read them. If they are unreadable, Start reports that, and the machine requests them from the leader.
func NewNode(self fault.Origin, epoch func() fault.Epoch, kinds *Registry[PlainNode], stored []byte, lost error) *Node {
	n := &Node{self: self, epoch: epoch, kinds: kinds, held: make(map[string]*heldOrder), lost: lost}
	var orders []*lofamov1.Order
	if lost == nil {
		orders, n.lost = decodeHeld(stored)
	}
	for _, kind := range kinds.Kinds() {
		n.held[kind] = &heldOrder{lost: n.lost != nil}
	}
	for _, o := range orders {
		// unknown kinds too
		n.held[o.GetKind()] = &heldOrder{number: o.GetNumber(), content: Content(o.GetContent()), lost: o.GetNumber() == 0}
	}
	return n
}

// Start applies all held orders. They are reported to the leader when they are in force.
func (n *Node) Start(now time.Time) (out NodeOutput) {
	n.again, out.Lost = now, n.lost
	for _, kind := range n.kinds.Kinds() {
		if h := n.held[kind]; h.number > 0 {
			h.applying = true
			out.Apply = append(out.Apply, Application{kind, h.number, h.content})
		}
	}
	out.Answer = n.Tick(now).Answer
	return out
}

// Tick reports lost orders, every lostAgain until the next order of their kind has come.
func (n *Node) Tick(now time.Time) (out NodeOutput) {
	if n.again.IsZero() || now.Before(n.again) {
		return out
	}
	n.again = time.Time{}
	for _, kind := range n.kinds.Kinds() {
		if n.held[kind].lost {
			out.Answer = append(out.Answer, n.status(kind, ""))
			n.again = now.Add(lostAgain)
		}
	}
	return out
}

// Order processes a verified order. The node answers in every case, unless the order is for another node: a leader that
// repeats an order has not received the answer.
func (n *Node) Order(o *lofamov1.Order) (out NodeOutput) {
	kind, content := o.GetKind(), Content(o.GetContent())
	handler, known := n.kinds.Of(kind)
	refuse := func(why string) NodeOutput {
		return NodeOutput{
			Answer: []*lofamov1.OrderStatus{n.status(kind, why)},
			Notes:  []string{fmt.Sprintf("%s order %d refused: %s", kind, o.GetNumber(), why)},
		}
	}
	switch h := n.held[kind]; {
	case o.GetNode() != string(n.self.Node):
		return NodeOutput{Notes: []string{fmt.Sprintf("%s order %d refused: it is for node %q", kind, o.GetNumber(), o.GetNode())}}
	case !known:
		return refuse("this node does not know the kind")
	case h.number == 0 && o.GetLife() != uint64(n.epoch()):
		return NodeOutput{Answer: []*lofamov1.OrderStatus{n.status(kind, "")}} // it names the life that the next order must name
	case o.GetNumber() < h.number, o.GetNumber() == h.number && content != h.content:
		return NodeOutput{
			Answer: n.answer(kind), Notes: []string{fmt.Sprintf("%s order %d refused: it is not newer than %d", kind, o.GetNumber(), h.number)},
		}
	case o.GetNumber() == h.number:
		return NodeOutput{Answer: n.answer(kind)}
	}
	if err := handler.Validate(content); err != nil {
		return refuse(err.Error())
	}
	onDisk := n.held[kind]
	if onDisk.onDisk != nil {
		onDisk = onDisk.onDisk
	}
	n.held[kind] = &heldOrder{number: o.GetNumber(), content: content, storing: true, onDisk: onDisk}
	return NodeOutput{Keep: n.encode()}
}

// Kept reports that a NodeOutput.Keep is on disk, or the error of the disk. An order that is not on disk is not applied;
// the node reports the error, and the leader sends the order again. Kept does nothing if a newer Keep is in progress.
func (n *Node) Kept(stored []byte, err error) (out NodeOutput) {
	if !bytes.Equal(stored, n.encode()) {
		return out
	}
	for _, kind := range n.kinds.Kinds() {
		h := n.held[kind]
		if !h.storing {
			continue
		}
		h.storing = false
		if err != nil {
			h.failed, h.unstored = "not stored: "+err.Error(), true
			out.Answer = append(out.Answer, n.answer(kind)...)
			out.Notes = append(out.Notes, fmt.Sprintf("%s order %d %s", kind, h.number, h.failed))
			continue
		}
		h.applying, h.onDisk = true, nil
		out.Apply = append(out.Apply, Application{kind, h.number, h.content})
	}
	return out
}

// Applied processes the result of an Application.
func (n *Node) Applied(a Application, err error) (out NodeOutput) {
	h := n.held[a.Kind]
	if h.number != a.Number { // a newer order is in progress, and answers
		return out
	}
	h.applying, h.failed = false, ""
	if err != nil {
		h.failed = err.Error()
		out.Notes = append(out.Notes, fmt.Sprintf("%s order %d is not in force: %s", a.Kind, a.Number, h.failed))
	}
	out.Answer = n.answer(a.Kind)
	return out
}

// answer returns the node's answer for a kind; none while the order is being stored or applied.
func (n *Node) answer(kind string) []*lofamov1.OrderStatus {
	if h := n.held[kind]; !h.storing && !h.applying {
		return []*lofamov1.OrderStatus{n.status(kind, h.failed)}
	}
	return nil
}

// status returns the node's held order of a kind, or why it refused the last one.
func (n *Node) status(kind, why string) *lofamov1.OrderStatus {
	st := &lofamov1.OrderStatus{
		Kind: kind, Node: string(n.self.Node), Half: lofamov1.Half(n.self.Half), Epoch: uint64(n.epoch()),
		Error: fault.Clean(why, fault.MaxDetail),
	}
	var content Content
	if h := n.held[kind]; h != nil {
		st.Number, st.Lost, content = h.number, h.lost, h.content
	}
	st.Sum = Sum(content)
	return st
}

// The file: magic (4 bytes), then for each kind, in alphabetical order, the length (2 bytes, big endian) of an Order
// without node and life, and the Order, of number 0 if it is lost; at the end CRC-32C over everything before (4 bytes,
// big endian).
const heldMagic = "LOR1"

// MaxHeld limits the stored orders of a half, in bytes.
const MaxHeld = 64 << 10

// errHeld is wrapped by the errors of decodeHeld.
var errHeld = errors.New("not the stored orders of a node")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (n *Node) encode() []byte {
	b := []byte(heldMagic)
	for _, kind := range slices.Sorted(maps.Keys(n.held)) {
		h := n.held[kind].stored()
		if h.number == 0 && !h.lost {
			continue
		}
		o, err := proto.MarshalOptions{Deterministic: true}.Marshal(&lofamov1.Order{Kind: kind, Number: h.number, Content: []byte(h.content)})
		if err != nil {
			panic(fmt.Sprintf("order: marshal order of kind %q: %v", kind, err)) // kinds are ASCII
		}
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(o))), o...)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeHeld decodes the output of encode; an empty input is a first start.
func decodeHeld(b []byte) (out []*lofamov1.Order, err error) {
	if len(b) == 0 {
		return nil, nil
	}
	if len(b) > MaxHeld || len(b) < len(heldMagic)+4 || string(b[:len(heldMagic)]) != heldMagic {
		return nil, fmt.Errorf("%d bytes that begin with %.4q: want at most %d that begin with %q: %w", len(b), b, MaxHeld, heldMagic, errHeld)
	}
	body, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if is := crc32.Checksum(body, castagnoli); is != sum {
		return nil, fmt.Errorf("checksum: given %#08x: want %#08x: %w", sum, is, errHeld)
	}
	for body = body[len(heldMagic):]; len(body) > 0; {
		if len(body) < 2 || len(body)-2 < int(binary.BigEndian.Uint16(body)) {
			return nil, fmt.Errorf("order %d is cut off: %w", len(out), errHeld)
		}
		n := int(binary.BigEndian.Uint16(body))
		o := new(lofamov1.Order)
		if err := proto.Unmarshal(body[2:2+n], o); err != nil || !servicenet.ValidOrderKind(o.GetKind()) {
			return nil, fmt.Errorf("order %d, of kind %.40q: %w", len(out), o.GetKind(), errHeld)
		}
		out, body = append(out, o), body[2+n:]
	}
	return out, nil
}
