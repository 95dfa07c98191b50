// Nor statically: the script is not started.
import made from "data:text/javascript,export default 7";
same(made, 7, "value");
