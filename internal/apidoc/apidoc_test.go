package apidoc

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	_ "github.com/lofamo/lofamo/api/lofamo/v1" // registers its descriptors
)

// imageOf is an image of the compiled-in files. These have lost their comments; say gives some back, by path.
func imageOf(t *testing.T, say map[string]*descriptorpb.SourceCodeInfo) []byte {
	t.Helper()
	var set descriptorpb.FileDescriptorSet
	seen := map[string]bool{}
	var add func(f protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i))
		}
		d := protodesc.ToFileDescriptorProto(f)
		d.SourceCodeInfo = say[f.Path()]
		set.File = append(set.File, d)
	}
	protoregistry.GlobalFiles.RangeFilesByPackage(Package, func(f protoreflect.FileDescriptor) bool {
		add(f)
		return true
	})
	image, err := proto.Marshal(&set)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// TestPageNamesAll: everything that the programs are compiled with is on the page that is committed, each field with its
// number, so that a page of an older API does not pass.
func TestPageNamesAll(t *testing.T) {
	text, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := compiled(t)
	if err != nil {
		t.Fatal(err)
	}
	committed := skeleton(string(text))
	if n := len(strings.Split(fresh, "\n")); n < 500 {
		t.Fatalf("only %d lines found", n)
	}
	if committed != fresh {
		t.Errorf("docs/api.md is not current: run make generate and commit\n%s", firstDifference(committed, fresh))
	}
}

// compiled is the skeleton of a page made of the compiled-in files.
func compiled(t *testing.T) (string, error) {
	t.Helper()
	say := map[string]*descriptorpb.SourceCodeInfo{}
	protoregistry.GlobalFiles.RangeFilesByPackage(Package, func(f protoreflect.FileDescriptor) bool {
		say[f.Path()] = &descriptorpb.SourceCodeInfo{Location: []*descriptorpb.SourceCodeInfo_Location{
			{Path: []int32{12}, Span: []int32{0, 0, 1}, LeadingComments: new(" A file.\n")},
		}}
		return true
	})
	text, err := Page(imageOf(t, say))
	return skeleton(text), err
}

// skeleton is what of a page does not come from comments: headings, fields and values, what calls take and give.
func skeleton(page string) string {
	var out []string
	for l := range strings.Lines(page) {
		switch {
		case strings.HasPrefix(l, "#"):
			out = append(out, strings.TrimSpace(l))
		case strings.HasPrefix(l, "| `"):
			cells := strings.Split(l, " | ")
			out = append(out, strings.Join(cells[:len(cells)-1], " | "))
		case strings.Contains(l, "](#") && strings.Contains(l, " → "):
			out = append(out, strings.TrimSpace(l))
		}
	}
	return strings.Join(out, "\n")
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return "committed: " + x[i] + "\nwant:      " + y[i]
		}
	}
	return "one is longer"
}

// TestProtoCommentsReachPage: comments before and behind, on several lines, with characters that have a meaning in tables.
func TestProtoCommentsReachPage(t *testing.T) {
	say := map[string]*descriptorpb.SourceCodeInfo{}
	protoregistry.GlobalFiles.RangeFilesByPackage(Package, func(f protoreflect.FileDescriptor) bool {
		say[f.Path()] = &descriptorpb.SourceCodeInfo{Location: []*descriptorpb.SourceCodeInfo_Location{
			{Path: []int32{12}, Span: []int32{0, 0, 1}, LeadingDetachedComments: []string{" About\n the file.\n"}},
			{Path: []int32{4, 0}, Span: []int32{1, 0, 9}, LeadingComments: new(" Before.\n\n In <two>\n parts.\n")},
			{Path: []int32{4, 1, 2, 0}, Span: []int32{2, 0, 9}, LeadingComments: new(" Above,\n\n a|b.\n"), TrailingComments: new(" And behind.\n")},
		}}
		return true
	})
	text, err := Page(imageOf(t, say))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"## lofamo/v1/admin.proto\n\nAbout\nthe file.\n\n",
		"Before.\n\nIn &lt;two>\nparts.\n\n",
		`| list of [Member](#member) | Above, a\|b. And behind. |`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has not %q", want)
		}
	}
}

func TestUnreadableImageIsRefused(t *testing.T) {
	for name, image := range map[string][]byte{
		"read the image":               []byte("no image"),
		"no file of package lofamo.v1": nil,
		"no source info":               imageOf(t, nil),
	} {
		if text, err := Page(image); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %d characters, error %v", name, len(text), err)
		}
	}
}
