package render

// tameTree: see below.
func tameTree(v any) bool { return false }
