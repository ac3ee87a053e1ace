# Linear mixed models by nlme, with Student's t by level: Rscript tests/oracles/random_intercept.R
# Writes the tables (CSV) and nlme's table of coefficients (JSON) beside this file.
library(nlme)
library(jsonlite)
here <- dirname(sub("^--file=", "", grep("^--file=", commandArgs(FALSE), value = TRUE)))

found <- function(name, data, formula, site) {
  data <- as.data.frame(data)
  data[[site]] <- as.character(data[[site]])
  columns <- c(site, all.vars(formula))
  write.csv(data[, columns], file.path(here, paste0(name, ".csv")), row.names = FALSE, quote = FALSE)
  fit <- lme(formula, data, random = as.formula(paste("~ 1 |", site)), control = lmeControl(
    tolerance = 1e-12, msTol = 1e-14, niterEM = 200, msMaxIter = 500))
  table <- summary(fit)$tTable
  terms <- anova(fit, type = "marginal")
  list(coefficients = lapply(split(table, rownames(table)), setNames, colnames(table)) |>
         lapply(as.list),
       terms = lapply(split(terms, rownames(terms)), as.list),
       tau = as.numeric(VarCorr(fit)[1, 2]), sigma = fit$sigma)
}

set <- list(
  orthodont = found("orthodont", Orthodont, distance ~ age + Sex, "Subject"),
  bodyweight = found("bodyweight", BodyWeight, weight ~ Time + Diet, "Rat")
)
write_json(set, file.path(here, "random_intercept.json"), digits = NA, auto_unbox = TRUE, pretty = TRUE)
