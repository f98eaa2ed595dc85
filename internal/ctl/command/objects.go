package command

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// object is one object of an answer: an element of its lists, or the whole answer.
type object struct {
	name string // KIND/NAME
	m    protoreflect.Message
	list protoreflect.FieldDescriptor // that the object is an element of; nil: the object is the answer
}

// objects returns the objects of an answer in order: its elements if it is a list, else the answer itself.
func objects(m proto.Message) []object {
	r := m.ProtoReflect()
	if name := wholeName(m); name != "" {
		return []object{{name: name, m: r}}
	}
	var out []object
	fields := r.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if !f.IsList() || f.Message() == nil {
			continue
		}
		kind, l := kindOf(string(f.Name())), r.Get(f).List()
		for j := range l.Len() {
			e := l.Get(j).Message()
			if name := elementName(e); name != "" {
				out = append(out, object{kind + "/" + name, e, f})
			}
		}
	}
	return out
}

// kindOf returns the kind of the elements of a list: node for nodes, policy for policies.
func kindOf(list string) string {
	if stem, ok := strings.CutSuffix(list, "ies"); ok {
		return stem + "y"
	}
	return strings.TrimSuffix(list, "s")
}

// wholeName names an answer that is one object, or returns "".
func wholeName(m proto.Message) string {
	switch m := m.(type) {
	case *lofamov1.GetPolicyResponse:
		return "policy/" + m.GetPolicy().GetName()
	case *lofamov1.DiagnosisReport:
		return "diagnosis/last"
	case *lofamov1.ProcedureReport:
		return "procedure/last"
	case *lofamov1.ResponseBreaker:
		return "breaker/responses"
	case *lofamov1.Topology:
		return "topology/" + m.GetDims()
	}
	r := m.ProtoReflect()
	if id := text(r, "id"); id != "" {
		return strings.ToLower(string(r.Descriptor().Name())) + "/" + id
	}
	return ""
}

// elementName names an element of a list by the fields that identify it, or returns "".
func elementName(e protoreflect.Message) string {
	for _, key := range [...]protoreflect.Name{"id", "name"} {
		if v := text(e, key); v != "" {
			return v
		}
	}
	node := text(e, "node")
	switch {
	case text(e, "seq") != "":
		return fmt.Sprintf("%s/%s@%s#%s", node, text(e, "half"), text(e, "epoch"), text(e, "seq"))
	case text(e, "direction") != "":
		return node + "/" + text(e, "direction")
	case text(e, "revision") != "":
		return text(e, "revision") + "-" + text(e, "index")
	}
	return node
}

// text returns a field as text, or "" if the message has no such field.
func text(m protoreflect.Message, field protoreflect.Name) string {
	f := m.Descriptor().Fields().ByName(field)
	if f == nil || f.IsList() || f.IsMap() || f.Message() != nil {
		return ""
	}
	return m.Get(f).String()
}

// printNames prints the name of each object on a line.
func (a *App) printNames(m proto.Message) error {
	for _, o := range objects(m) {
		if _, err := fmt.Fprintln(a.Env.Stdout, Printable(o.name)); err != nil {
			return err
		}
	}
	return nil
}
