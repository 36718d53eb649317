// Package subtests finds the parts of tests in their source, without running them:
// what t.Run is given as a name, and what the function that it is given runs below it.
//
// It understands what tests are written with here: literals and constants; fields of
// the elements, and keys, of slices and maps that a loop goes over, which are written
// down in place, in a variable of the function or in one of the package; what is put
// together of these with +; functions that are literals, methods, or fields of such
// elements. A function that is given the test is looked into, too.
//
// What it does not understand it does not find: it may miss a part that is there, but
// it makes up none.
package subtests

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Package is the source of one, with its tests.
type Package struct {
	// functions and methods by their names; a method's has the name of its type and a
	// dot before it.
	functions map[string]*ast.FuncDecl
	// values of package-level variables and constants.
	values map[string]ast.Expr
	// structs have the names of fields in their order.
	structs map[string][]string
}

// Parse reads the package in a directory.
func Parse(dir string) (*Package, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("cannot find a package in %s: %v", dir, err)
	}
	p := &Package{functions: map[string]*ast.FuncDecl{}, values: map[string]ast.Expr{}, structs: map[string][]string{}}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("cannot parse tests: %w", err)
		}
		for _, d := range parsed.Decls {
			p.declare(d)
		}
	}
	return p, nil
}

func (p *Package) declare(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			name = typeName(d.Recv.List[0].Type) + "." + name
		}
		p.functions[name] = d
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				for i, name := range spec.Names {
					if i < len(spec.Values) {
						p.values[name.Name] = spec.Values[i]
					}
				}
			case *ast.TypeSpec:
				if s, ok := spec.Type.(*ast.StructType); ok {
					p.structs[spec.Name.Name] = fieldNames(s)
				}
			}
		}
	}
}

func typeName(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return typeName(t.X)
	case *ast.IndexExpr:
		return typeName(t.X)
	case *ast.ParenExpr:
		return typeName(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

func fieldNames(s *ast.StructType) []string {
	var names []string
	for _, f := range s.Fields.List {
		if len(f.Names) == 0 {
			names = append(names, typeName(f.Type))
		}
		for _, n := range f.Names {
			names = append(names, n.Name)
		}
	}
	return names
}

// Tests returns the names of the test functions, sorted.
func (p *Package) Tests() []string {
	var names []string
	for name := range p.functions {
		if rest, ok := strings.CutPrefix(name, "Test"); ok && rest != "Main" && rest != "" && !strings.Contains(name, ".") && strings.ToUpper(rest[:1]) == rest[:1] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Names returns a test's name and those of its parts, sorted, as go test prints them;
// nothing if there is no such test.
func (p *Package) Names(test string) []string {
	f := p.functions[test]
	if f == nil {
		return nil
	}
	w := &walk{p: p, found: map[string]bool{test: true}}
	w.function(test, f.Type, f.Body, scope{}, nil)
	names := make([]string, 0, len(w.found))
	for name := range w.found {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// scope has what is known of the names in a function: of variables what they may be,
// of elements of a table what their fields are.
type scope map[string]value

// value is what an expression may be.
type value struct {
	// expr is what it was made by, if it is one thing.
	expr ast.Expr
	// scope is where expr stands.
	scope scope
	// fields of a struct.
	fields map[string]value
}

// walk goes through the functions that run below one test.
type walk struct {
	p     *Package
	found map[string]bool
	// below are the functions that are being looked into: one that calls itself ends.
	below []*ast.BlockStmt
}

// function looks into one that runs as the test of this name.
func (w *walk) function(test string, kind *ast.FuncType, body *ast.BlockStmt, known scope, args []value) {
	if body == nil || slices.Contains(w.below, body) {
		return
	}
	w.below = append(w.below, body)
	defer func() { w.below = w.below[:len(w.below)-1] }()
	inner := scope{}
	for name, v := range known {
		inner[name] = v
	}
	i := 0
	for _, p := range kind.Params.List {
		for _, name := range p.Names {
			delete(inner, name.Name)
			if i < len(args) {
				inner[name.Name] = args[i]
			}
			i++
		}
	}
	w.statements(test, body.List, inner)
}

func (w *walk) statements(test string, list []ast.Stmt, known scope) {
	for _, s := range list {
		w.statement(test, s, known)
	}
}

// statement looks for calls, and learns what variables are. A loop over a table is
// gone through once for each element.
func (w *walk) statement(test string, s ast.Stmt, known scope) {
	switch s := s.(type) {
	case *ast.AssignStmt:
		for i, left := range s.Lhs {
			if name, ok := left.(*ast.Ident); ok && len(s.Lhs) == len(s.Rhs) {
				known[name.Name] = value{expr: s.Rhs[i], scope: clone(known)}
			}
		}
		for _, right := range s.Rhs {
			w.calls(test, right, known)
		}
	case *ast.RangeStmt:
		w.loop(test, s, known)
	case *ast.BlockStmt:
		w.statements(test, s.List, clone(known))
	case *ast.IfStmt:
		inner := clone(known)
		if s.Init != nil {
			w.statement(test, s.Init, inner)
		}
		w.calls(test, s.Cond, inner)
		w.statements(test, s.Body.List, clone(inner))
		if s.Else != nil {
			w.statement(test, s.Else, clone(inner))
		}
	case *ast.ForStmt:
		w.statements(test, s.Body.List, clone(known))
	case *ast.ExprStmt:
		w.calls(test, s.X, known)
	case *ast.DeclStmt:
		if d, ok := s.Decl.(*ast.GenDecl); ok {
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok {
					for i, name := range v.Names {
						if i < len(v.Values) {
							known[name.Name] = value{expr: v.Values[i], scope: clone(known)}
						}
					}
				}
			}
		}
	}
}

func clone(s scope) scope {
	c := make(scope, len(s))
	for name, v := range s {
		c[name] = v
	}
	return c
}

// loop goes through the elements of a table that is written down.
func (w *walk) loop(test string, s *ast.RangeStmt, known scope) {
	table, at := w.literal(value{expr: s.X, scope: known})
	if table == nil {
		w.statements(test, s.Body.List, clone(known))
		return
	}
	var element ast.Expr
	switch kind := table.Type.(type) {
	case *ast.ArrayType:
		element = kind.Elt
	case *ast.MapType:
		element = kind.Value
	}
	for _, e := range table.Elts {
		inner := clone(known)
		pair, keyed := e.(*ast.KeyValueExpr)
		if keyed {
			e = pair.Value
			if name, ok := s.Key.(*ast.Ident); ok {
				inner[name.Name] = value{expr: pair.Key, scope: at}
			}
		}
		if name, ok := s.Value.(*ast.Ident); ok {
			inner[name.Name] = w.element(e, element, at)
		}
		w.statements(test, s.Body.List, inner)
	}
}

// element is one of a table, whose type may be written at the table only.
func (w *walk) element(e, kind ast.Expr, at scope) value {
	v := value{expr: e, scope: at}
	c, ok := e.(*ast.CompositeLit)
	if !ok {
		return v
	}
	if c.Type != nil {
		kind = c.Type
	}
	if star, ok := kind.(*ast.StarExpr); ok {
		kind = star.X
	}
	var names []string
	switch kind := kind.(type) {
	case *ast.StructType:
		names = fieldNames(kind)
	case *ast.Ident:
		names = w.p.structs[kind.Name]
	}
	v.fields = map[string]value{}
	for i, e := range c.Elts {
		if pair, ok := e.(*ast.KeyValueExpr); ok {
			if name, ok := pair.Key.(*ast.Ident); ok {
				v.fields[name.Name] = value{expr: pair.Value, scope: at}
			}
		} else if i < len(names) {
			v.fields[names[i]] = value{expr: e, scope: at}
		}
	}
	return v
}

// literal follows names to a table.
func (w *walk) literal(v value) (*ast.CompositeLit, scope) {
	v = w.resolve(v)
	c, ok := v.expr.(*ast.CompositeLit)
	if !ok {
		return nil, nil
	}
	return c, v.scope
}

// resolve follows names, and fields of elements, to what they are.
func (w *walk) resolve(v value) value {
	for range 20 { // more is a variable that is made of itself
		switch e := v.expr.(type) {
		case *ast.ParenExpr:
			v = value{expr: e.X, scope: v.scope}
		case *ast.Ident:
			if known, ok := v.scope[e.Name]; ok {
				v = known
			} else if expr, ok := w.p.values[e.Name]; ok {
				v = value{expr: expr, scope: scope{}}
			} else {
				return v
			}
		case *ast.SelectorExpr:
			of := value{expr: e.X, scope: v.scope}
			if name, ok := e.X.(*ast.Ident); ok {
				if known, ok := v.scope[name.Name]; ok {
					of = known
				}
			}
			field, ok := of.fields[e.Sel.Name]
			if !ok {
				return v
			}
			v = field
		default:
			return v
		}
	}
	return value{}
}

// text is a string that an expression is.
func (w *walk) text(v value) (string, bool) {
	v = w.resolve(v)
	switch e := v.expr.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		left, ok1 := w.text(value{expr: e.X, scope: v.scope})
		right, ok2 := w.text(value{expr: e.Y, scope: v.scope})
		return left + right, ok1 && ok2 && e.Op == token.ADD
	}
	return "", false
}

// calls looks for calls in an expression: of t.Run, and of functions that are given t.
func (w *walk) calls(test string, e ast.Expr, known scope) {
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false // what runs it is not known
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Run" && len(n.Args) == 2 {
				if name, ok := w.text(value{expr: n.Args[0], scope: known}); ok {
					part := test + "/" + strings.ReplaceAll(name, " ", "_")
					w.found[part] = true
					w.run(part, value{expr: n.Args[1], scope: known}, nil)
				}
				return false
			}
			if givesTest(n.Args) {
				var args []value
				for _, a := range n.Args {
					args = append(args, value{expr: a, scope: known})
				}
				w.run(test, value{expr: n.Fun, scope: known}, args)
			}
		}
		return true
	})
}

// givesTest reports whether one of the arguments is t, the name that all tests here
// have for it.
func givesTest(args []ast.Expr) bool {
	return slices.ContainsFunc(args, func(a ast.Expr) bool { name, ok := a.(*ast.Ident); return ok && name.Name == "t" })
}

// run looks into what a function value runs.
func (w *walk) run(test string, f value, args []value) {
	f = w.resolve(f)
	switch e := f.expr.(type) {
	case *ast.FuncLit:
		w.function(test, e.Type, e.Body, f.scope, args)
	case *ast.Ident:
		if d := w.p.functions[e.Name]; d != nil {
			w.function(test, d.Type, d.Body, scope{}, args)
		}
	case *ast.SelectorExpr:
		// (*T).method, or a method of a value whose type is not known here: then it must
		// be the only one of this name.
		if d := w.p.functions[typeName(e.X)+"."+e.Sel.Name]; d != nil {
			w.function(test, d.Type, d.Body, scope{}, nil)
			return
		}
		var only *ast.FuncDecl
		for name, d := range w.p.functions {
			if strings.HasSuffix(name, "."+e.Sel.Name) {
				if only != nil {
					return
				}
				only = d
			}
		}
		if only != nil {
			w.function(test, only.Type, only.Body, scope{}, args)
		}
	}
}
